from packaging.specifiers import SpecifierSet

from lmtrain.doctor.software import (
    compiler,
    flash_attention,
    installed,
    package_version,
    package_versions,
    python_version,
)


def test_this_environment_fits_what_the_project_asks_for():
    assert [finding.state for finding in package_versions()] == ["ok"] * 4
    assert python_version().state == "ok"


def test_a_python_or_package_that_does_not_fit_is_bad():
    assert python_version("3.9.1").state == "bad"
    wanted = SpecifierSet(">=2.11,<2.14")
    assert package_version("torch", "2.13.0+cpu", wanted).state == "ok"
    assert package_version("torch", "2.14.0", wanted).state == "bad"
    missing = package_version("torch", None, wanted)
    assert missing.state == "bad"
    assert "uv pip install 'torch" in missing.fix
    assert installed("no-such-package-here") is None


def test_flash_attention_is_missed_only_where_a_gpu_could_use_it():
    assert flash_attention(has_gpu=False).state == "ok"
    assert flash_attention(has_gpu=True, version="2.8.3").state == "ok"
    if not any(installed(name) for name in ("flash_attn", "flash_attn_interface", "flash-attn-4")):
        assert flash_attention(has_gpu=True).state == "warn"


def test_a_compiler_is_found_on_the_path_or_named_by_cxx(tmp_path):
    missed = compiler({"PATH": str(tmp_path)}, without="compile=mine")
    assert (missed.state, missed.fix.endswith("train with compile=mine")) == ("warn", True)
    mine = tmp_path / "my-cxx"
    mine.touch(mode=0o755)
    assert compiler({"PATH": str(tmp_path), "CXX": "my-cxx"}, without="").found == str(mine)
