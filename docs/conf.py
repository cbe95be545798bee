"""Sphinx: `make docs` builds this folder into build/docs, with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from typing import Any  # noqa: E402

from docutils import nodes  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402

import specsim  # noqa: E402

project = "specsim"
author = "the specsim authors"
copyright = "the specsim authors, Apache-2.0"
version = release = specsim.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["decisions/README.md"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

# The reference is built without torch: what needs it is not part of the public interface.
autodoc_mock_imports = ["torch", "safetensors", "transformers", "gguf", "tokenizers", "perfetto"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = "specsim"
html_static_path: list[str] = []
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"


def math(writer: Any, node: nodes.Element) -> None:
    """Write an equation as MathML: browsers draw it without a script from elsewhere."""
    block = isinstance(node, nodes.math_block)
    text = convert(node.astext(), display="block" if block else "inline")
    writer.body.append(f"<div>{text}</div>" if block else text)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (math, None), (math, None))
