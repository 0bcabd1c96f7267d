"""Discovery of spec files in folders."""

import pytest

from tlmatrix.spec import SpecError, find_specs

SPEC = "name: trial\nproblem: gemm\nentry: a:b\naxes: {m: [1]}\n"


def test_specs_are_found_recursively_in_order(tmp_path):
    files = {
        "b.yaml": SPEC,
        "a.yml": SPEC,
        "deep/er/c.yaml": "# comment\n" + SPEC.replace("entry", "factory"),
        "quoted.yaml": SPEC.replace("axes", "'axes'"),
        "broken.yaml": SPEC + "constraints: [\n",  # still a spec: its error must be seen
        ".hidden.yaml": SPEC,
        ".git/d.yaml": SPEC,
        "compose.yaml": "services: {web: {}}\naxes: 3\n",
        "nested.yaml": "spec:\n  axes: {}\n  problem: gemm\n",
        "list.yaml": "- axes\n- problem\n",
        "notes.txt": SPEC,
        "binary.yaml": b"\x00\xff\xfe",
        "empty.yaml": "",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = [str(path.relative_to(tmp_path)) for path in find_specs([tmp_path])]
    assert found == ["a.yml", "b.yaml", "broken.yaml", "quoted.yaml", "deep/er/c.yaml"]


def test_a_named_file_is_returned_unchecked_and_once(tmp_path):
    path = tmp_path / "any.txt"
    path.write_text("not a spec")
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    assert find_specs([path, str(spec), tmp_path, path]) == [path, spec]


def test_a_path_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*absent"):
        find_specs([tmp_path / "absent"])


def test_a_dangling_link_in_a_folder_is_an_error(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "gone.txt").symlink_to("nowhere")
    assert len(find_specs([tmp_path])) == 1
    (tmp_path / "gone.yaml").symlink_to("moved/gone.yaml")
    message = r"gone.yaml:1:1: a link to moved/gone.yaml, which does not exist; remove or mend it"
    with pytest.raises(SpecError, match=message):
        find_specs([tmp_path])


def test_an_unreadable_file_in_a_folder_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "spec.yaml").write_text(SPEC)

    def fail(_path):
        raise PermissionError(13, "Permission denied", str(tmp_path / "spec.yaml"))

    monkeypatch.setattr("tlmatrix.spec.loader.is_spec", fail)
    with pytest.raises(SpecError, match=r"spec.yaml:1:1: cannot be read: Permission denied"):
        find_specs([tmp_path])


def test_links_to_folders_are_followed_once(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "spec.yaml").write_text(SPEC)
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "link").symlink_to("../there")
    (tmp_path / "there" / "back").symlink_to("../specs")
    assert find_specs([tmp_path / "specs"]) == [tmp_path / "specs" / "link" / "spec.yaml"]
