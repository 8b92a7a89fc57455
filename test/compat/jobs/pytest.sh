# program: pytest
# needs: python3
# has: python3 -c 'import pytest' || /usr/bin/python3 -c 'import pytest'
# version: (python3 -m pytest --version || /usr/bin/python3 -m pytest --version) 2>&1 | grep ^pytest
# does: a run with a test that fails among those that pass (exit code 1 comes through); temporary directories, captured descriptors, caches
# kind: core
# exit: 1
# makes: report.xml .pytest_cache/v/cache/lastfailed
# differs: report\.xml
# varies: __pycache__

job() {
	local python=python3
	$python -c 'import pytest' 2>/dev/null || python=/usr/bin/python3
	cat > app.py <<'END'
def add(a, b):
    return a + b
END
	cat > test_app.py <<'END'
import os, subprocess, pytest
from app import add

@pytest.mark.parametrize("a,b,c", [(1, 2, 3), (0, 0, 0)])
def test_add(a, b, c): assert add(a, b) == c

def test_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("x")
    assert os.listdir() == ["f"]

def test_output(capfd):
    subprocess.run(["echo", "hi"], check=True)
    assert capfd.readouterr().out == "hi\n"

def test_wrong(): assert add(1, 1) == 3
END
	$python -m pytest -q --junitxml=report.xml | sed 's/in [0-9.]*s//' | grep -E 'passed|failed|FAILED'
	exit "${PIPESTATUS[0]}"
}
