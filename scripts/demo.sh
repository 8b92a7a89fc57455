#!/bin/sh
# Runs the main job on a small sample workspace and checks that each result is
# the one that was promised. Usage: demo.sh HUTCH
set -eu

hutch=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
world=$(mktemp -d "${TMPDIR:-/tmp}/hutch-demo-XXXXXX")
trap 'rm -rf "$world"' EXIT
trap 'exit 130' INT TERM
export XDG_STATE_HOME="$world/state"
unset PYTHONDONTWRITEBYTECODE
workspace=$world/workspace
mkdir "$workspace" && cd "$workspace"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { printf 'demo: FAILED: %s\n' "$*" >&2; exit 1; }

# try CODE ARG...: shows the command, runs it, and fails unless it exits with
# CODE. Its output is also in $world/out.
try() {
	want=$1; shift
	printf '$ hutch'
	for arg in "$@"; do
		case $arg in *[!A-Za-z0-9=./_-]*) printf " '%s'" "$arg" ;; *) printf ' %s' "$arg" ;; esac
	done
	printf '\n'
	got=0
	"$hutch" "$@" >"$world/out" 2>&1 </dev/null || got=$?
	sed 's/^/  /' "$world/out"
	printf '  (exit %d)\n' "$got"
	[ "$got" = "$want" ] || fail "exit $got, promised $want"
}

# fingerprint of the workspace: names, types, modes, times to the nanosecond,
# and contents
fingerprint() {
	find . -path ./.hutch -prune -o -printf '%p %y %m %T@ %l\n' | LC_ALL=C sort
	find . -path ./.hutch -prune -o -type f -exec cksum {} + | LC_ALL=C sort
}
untouched() {
	fingerprint >"$world/now"
	cmp -s "$world/before" "$world/now" || { diff "$world/before" "$world/now" || true; fail 'the workspace changed'; }
	echo '  The workspace is what it was, byte for byte, mode for mode, time for time.'
}

say 'A sample workspace: a git repository with a Python module and its test'
cat >module.py <<'PY'
def add(a, b):
    return a + b
PY
cat >test_module.py <<'PY'
import unittest
import module

class TestAdd(unittest.TestCase):
    def test_add(self):
        self.assertEqual(module.add(1, 2), 3)
PY
printf 'foo one\nfoo two\n' >a.txt
printf '# sample\n' >README.md
git init -q .
git add .
git -c user.name=demo -c user.email=demo@example.com commit -qm 'sample'
fingerprint >"$world/before"
ls

say '1. A command that fails: nothing reaches the workspace'
try 1 run -- sh -c 'echo x > new.txt; rm README.md; exit 1'
untouched

say '2. A command that succeeds, not committed: nothing reaches it either'
try 0 run -- sh -c 'rm -rf * .git; echo gone: $(ls -A | wc -l) files left in here'
untouched

say '3. What would change'
try 0 run --diff -- sed -i s/foo/bar/ a.txt
grep -q '^-foo one' "$world/out" && grep -q '^+bar one' "$world/out" || fail 'no unified diff was shown'
untouched

say '4. A loop without end, and two seconds for it'
try 124 run --timeout-ms 2000 -- python3 -c 'while True: pass'
untouched

say '5. No network, none of your files, none of your secrets'
DEMO_TOKEN=secret try 0 run -- sh -c 'echo "token: [$DEMO_TOKEN], keys: $(ls ~/.ssh 2>/dev/null | wc -l)"'
grep -q 'token: \[\], keys: 0' "$world/out" || fail 'a secret came in'
try 1 run -- python3 -c '
import socket, sys
try: socket.create_connection(("192.0.2.1", 80), 5)
except OSError as e: sys.exit(print("network:", e.strerror) or 1)'
untouched

say '6. The outcome for programs'
try 0 run --json -- echo done
python3 - "$world/out" <<'PY' || fail 'the outcome is not the promised object'
import json, sys
o = json.load(open(sys.argv[1]))
assert o["schema"] == "hutch.outcome/v1" and o["status"] == "success" and o["exit_code"] == 0, o
assert o["stdout"] == "done\n" and o["committed"] is False and o["filesystem_modified"] is False, o
PY

say '7. The tests pass, so what they wrote arrives'
try 0 run --commit -- python3 -m unittest -q test_module
try 0 run --commit -- sh -c 'echo "def sub(a, b): return a - b" >> module.py; python3 -c "import module; assert module.sub(3, 1) == 2"'
grep -q 'def sub' module.py || fail 'the change did not arrive'
[ -d __pycache__ ] || fail 'what the tests wrote did not arrive'
GIT_OPTIONAL_LOCKS=0 git status --short

say '8. Taken back again, exactly'
try 0 log
try 0 undo
! grep -q 'def sub' module.py || fail 'the change is still there'
try 0 undo
untouched

say '9. A change that would make somebody else run something is held'
try 125 run --commit -- sh -c 'mkdir .vscode; echo "{\"tasks\": []}" > .vscode/tasks.json; echo "more" >> a.txt'
grep -q 'held: .vscode/tasks.json: the editor' "$world/out" || fail 'nothing was held'
untouched
box=$(sed -n 's/.*hutch discard //p' "$world/out")
echo '  The rest can be taken, and what is held looked at and dropped:'
try 0 commit "$box" --only a.txt
[ ! -e .vscode ] || fail 'what was held arrived'
try 0 diff "$box"
try 0 discard "$box"

say '10. You and the box edit one file: nothing is promoted until you say how'
seq 12 >list.txt
git add list.txt a.txt && git -c user.name=demo -c user.email=demo@example.com commit -qm 'a list'
try 0 run --preserve -- sed -i 's/^12$/twelve (the box)/' list.txt
box=$(sed -n 's/.*hutch discard //p' "$world/out")
sed -i 's/^1$/one (you)/' list.txt
try 125 commit "$box"
try 0 commit "$box" --on-conflict merge
grep -q 'one (you)' list.txt && grep -q 'twelve (the box)' list.txt || fail 'it was not merged'
git diff -U0 list.txt | sed 's/^/  /'

say '11. The record of it all'
try 0 receipts verify

say 'Everything was as promised.'
