"""Sphinx: `make docs` builds this folder into build/docs, with warnings as errors."""

from __future__ import annotations

import re
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
napoleon_attr_annotations = False  # shapes and types stand in the text
default_role = "literal"  # docstrings write `names` so

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
    # The theme scrolls what is too wide; a mark that stands out above its line must not do that.
    style = "padding: .4em 0; overflow: auto hidden"
    writer.body.append(f'<div style="{style}">{text}</div>' if block else text)
    raise nodes.SkipNode


def whole_sentence(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Keep napoleon from taking the words before a colon for the type of an attribute."""
    del app, name, thing, options
    if what in ("attribute", "data", "property") and lines:
        lines[0] = f": {lines[0]}"


def short_arrays(
    app: Any, what: str, name: str, thing: Any, options: Any, given: str, returned: str
) -> tuple[str, str]:
    """Write the type of an array as people do: `ndarray[int64]`."""
    del app, what, name, thing, options
    return tuple(_ARRAY.sub(r"ndarray[\1]", text) if text else text for text in (given, returned))


_ARRAY = re.compile(
    r"~?(?:numpy\.)?ndarray\[~?(?:typing\.)?tuple\[~?(?:typing\.)?Any, \.\.\.\], "
    r"~?(?:numpy\.)?dtype\[~?(?:numpy\.)?(\w+)(?:\[~?(?:typing\.)?Any\])?\]\]"
)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", whole_sentence, priority=400)  # before napoleon's
    app.connect("autodoc-process-signature", short_arrays)
    app.add_html_math_renderer("mathml", (math, None), (math, None))
