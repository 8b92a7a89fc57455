# program: python venv and pip
# needs: python3
# version: python3 -m pip --version | cut -d' ' -f1,2
# does: a virtual environment with pip, a local wheel built by hand and installed without an index, its script run
# kind: long
# makes: env/bin/hello env/pyvenv.cfg
# differs: RECORD$|direct_url\.json$|\.exe$
# varies: __pycache__

job() {
	python3 -m venv env
	python3 - <<'END'
import zipfile
with zipfile.ZipFile("hello-1.0-py3-none-any.whl", "w") as z:
    def add(name, text): z.writestr(zipfile.ZipInfo(name), text)
    add("hello.py", "def main():\n    print('hello from a wheel')\n")
    add("hello-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
    add("hello-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    add("hello-1.0.dist-info/entry_points.txt", "[console_scripts]\nhello = hello:main\n")
    add("hello-1.0.dist-info/RECORD", "hello.py,,\nhello-1.0.dist-info/METADATA,,\nhello-1.0.dist-info/WHEEL,,\nhello-1.0.dist-info/entry_points.txt,,\nhello-1.0.dist-info/RECORD,,\n")
END
	env/bin/pip install -q --no-index --disable-pip-version-check ./hello-1.0-py3-none-any.whl
	env/bin/hello
	. env/bin/activate
	python -c 'import hello, sys; print(sys.prefix != sys.base_prefix)'
}
