from __future__ import annotations

from pathlib import Path

import pytest

from specsim.errors import InputError
from specsim.scenario import locate
from specsim.scenario.locate import find_scenario, locator, scenario_names, shipped


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario's folder, a working directory, and shipped profiles."""
    for path in (
        "mine/near.json",
        "mine/profiles/steps/vllm/both.json",
        "here/profiles/steps/vllm/both.json",
        "here/profiles/steps/lib/twice.json",
        "here/profiles/steps/vllm/twice.json",
        "ship/profiles/steps/vllm/both.json",
        "ship/profiles/steps/vllm/only.json",
        "ship/profiles/traces/real.npz",
        "ship/scenarios/hello.yaml",
        "ship/scenarios/flash.yaml",
        "here/scenarios/local.yaml",
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(locate, "shipped", lambda folder: tmp_path / "ship" / folder)
    return tmp_path


def content(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("group", "name", "found"),
    [
        ("steps", "near.json", "mine/near.json"),
        ("steps", "near", "mine/near.json"),
        ("steps", "vllm/both", "mine/profiles/steps/vllm/both.json"),
        ("steps", "lib/twice", "here/profiles/steps/lib/twice.json"),
        ("steps", "vllm/only", "ship/profiles/steps/vllm/only.json"),
        ("steps", "only", "ship/profiles/steps/vllm/only.json"),
        ("steps", "both", "mine/profiles/steps/vllm/both.json"),
        ("traces", "real", "ship/profiles/traces/real.npz"),
        ("steps", "../ship/profiles/steps/vllm/only.json", "ship/profiles/steps/vllm/only.json"),
    ],
)
def test_nearer_folders_win(tree: Path, group: str, name: str, found: str) -> None:
    assert content(locator(tree / "mine")(group, name)) == found


def test_an_absolute_path_is_taken_as_it_is(tree: Path) -> None:
    path = tree / "ship/profiles/steps/vllm/only.json"
    assert locator(tree / "mine")("steps", str(path)) == path


@pytest.mark.parametrize(
    ("group", "name", "words"),
    [
        ("steps", "vllm/onyl", 'did you mean "vllm/only"?'),
        ("steps", "onyl", 'did you mean "only"?'),
        ("steps", "twice", "names more than one step-cost table: lib/twice, vllm/twice"),
        ("steps", "real", "no step-cost table"),
        ("traces", "zzzz", "there are real"),
        ("traces", "", "no trace"),
        ("traces", "x" * 400, "no trace"),
        ("steps", "vllm", "no step-cost table"),
    ],
)
def test_what_is_not_there(tree: Path, group: str, name: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        locator(tree / "mine")(group, name)
    assert words in str(caught.value)


def test_pointers_to_large_files_are_recognised(tree: Path) -> None:
    pointer = tree / "mine" / "big.npz"
    pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(InputError, match="git lfs pull"):
        locator(tree / "mine")("traces", "big")


def test_names_lists_each_profile_once(tree: Path) -> None:
    names = dict(locator(tree / "mine").names("steps"))
    assert list(names) == ["lib/twice", "vllm/both", "vllm/only", "vllm/twice"]
    assert content(names["vllm/both"]).startswith("mine/")


def test_scenarios_by_name_and_by_path(tree: Path) -> None:
    assert content(find_scenario("hello")) == "ship/scenarios/hello.yaml"
    assert content(find_scenario("local")) == "here/scenarios/local.yaml"
    assert content(find_scenario("scenarios/local.yaml")) == "here/scenarios/local.yaml"
    assert [name for name, _ in scenario_names()] == ["flash", "hello", "local"]
    for wrong, words in (
        ("helo", 'did you mean "hello"?'),
        ("scenarios/locla.yaml", 'did you mean "scenarios/local.yaml"?'),
        ("nowhere/hello.yaml", 'did you mean "hello"?'),
        ("scenarios", "is a folder"),
    ):
        with pytest.raises(InputError) as caught:
            find_scenario(wrong)
        assert words in str(caught.value)


def test_a_folder_of_a_scenarios_name_does_not_hide_it(tree: Path) -> None:
    # `specsim run hello --out hello`, twice.
    (tree / "here" / "hello").mkdir()
    assert content(find_scenario("hello")) == "ship/scenarios/hello.yaml"


def test_an_installed_package_carries_its_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "site-packages" / "specsim" / "_data"
    (data / "profiles").mkdir(parents=True)
    monkeypatch.setattr(locate.specsim, "__file__", str(data.parent / "__init__.py"))
    assert shipped("profiles") == data / "profiles"
    assert shipped("scenarios") == tmp_path / "site-packages" / "scenarios"


def test_the_shipped_folders_of_a_checkout_are_there() -> None:
    assert (shipped("profiles") / "steps").is_dir()
    assert (shipped("scenarios") / "hello.yaml").is_file()
