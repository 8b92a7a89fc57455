package receipt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	if runtime.GOOS != "linux" {
		return
	}
	if dir := os.Getenv("HUTCH_TEST_APPEND"); dir != "" {
		appendFromProcess(dir)
	}
	os.Exit(m.Run())
}

// appendFromProcess is the other process of TestProcesses and TestKilled.
func appendFromProcess(dir string) {
	l, err := Open(dir)
	for i := 0; err == nil && (i < 100 || os.Getenv("HUTCH_TEST_FOREVER") != ""); i++ {
		_, err = l.Append(fmt.Sprintf("p%d-%d", os.Getpid(), i), map[string]string{"pad": strings.Repeat("x", i*97%5000)}, false)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) *Log {
	t.Helper()
	l, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

type record struct {
	Status string `json:"status"`
	N      int    `json:"n"`
}

func add(t testing.TB, l *Log, id string, n int) Receipt {
	t.Helper()
	r, err := l.Append(id, record{"success", n}, false)
	must(t, err)
	return r
}

// sound checks the whole chain.
func sound(t testing.TB, l *Log, want int) {
	t.Helper()
	n, broken, reason, err := l.Verify()
	if n != want || broken != 0 || reason != "" || err != nil {
		t.Fatalf("Verify = %d sound, line %d broken (%s), %v; want %d sound", n, broken, reason, err, want)
	}
}

func broken(t testing.TB, l *Log, line int) {
	t.Helper()
	_, at, reason, err := l.Verify()
	if at != line || reason == "" || err != nil {
		t.Fatalf("Verify: line %d (%s), %v; want line %d", at, reason, err, line)
	}
}

func TestChain(t *testing.T) {
	dir := t.TempDir() + "/new/state"
	l := open(t, dir)
	sound(t, l, 0)
	first := add(t, l, "a-1", 1)
	if first.Prev != Genesis {
		t.Errorf("first prev %q", first.Prev)
	}
	second, err := open(t, dir).Append("a-2", record{"failed", 2}, true)
	must(t, err)
	if second.Prev != first.Hash || second.Prev != digest(first.Raw) {
		t.Errorf("second prev %q, want %q", second.Prev, first.Hash)
	}
	if _, err := l.Append("empty", struct{}{}, false); err != nil {
		t.Error(err)
	}
	sound(t, l, 3)

	text, err := os.ReadFile(l.Path())
	must(t, err)
	var got map[string]any
	must(t, json.Unmarshal(text[:bytes.IndexByte(text, '\n')], &got))
	if got["schema"] != Schema || got["id"] != "a-1" || got["status"] != "success" || got["n"] != 1.0 {
		t.Errorf("line 1 is %v", got)
	}
	if !bytes.HasPrefix(text, []byte(`{"schema":"hutch.receipt/v1","id":"a-1","time":"`)) {
		t.Errorf("line 1 is %s", text)
	}
	if info, err := os.Stat(l.Path()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: a receipt may hold secrets", info.Mode(), err)
	}

	all, err := l.List()
	must(t, err)
	if len(all) != 3 || all[1].ID != "a-2" || all[1].Line != 2 || !bytes.Equal(all[1].Raw, second.Raw) {
		t.Errorf("List = %+v", all)
	}
	add(t, l, "a-1", 3)
	for id, n := range map[string]string{"a-1": `"n":3`, "a-2": `"n":2`, "em": "empty"} {
		if r, err := l.Show(id); err != nil || !bytes.Contains(r.Raw, []byte(n)) {
			t.Errorf("Show(%q) = %s, %v", id, r.Raw, err)
		}
	}
	if _, err := l.Show("a-"); err == nil || !strings.Contains(err.Error(), "could be receipt a-1 or a-2") {
		t.Errorf("ambiguous: %v", err)
	}
	for _, id := range []string{"", "b", "a-11"} {
		if _, err := l.Show(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("Show(%q): %v", id, err)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	l := open(t, t.TempDir())
	for _, record := range []any{
		nil, 1, "x", []int{}, json.RawMessage(`{"a":`), make(chan int),
		map[string]any{"prev": "x"}, map[string]any{"ID": "x"}, map[string]any{"Time": nil}, map[string]any{"schema": 1},
		map[string]string{"big": strings.Repeat("x", MaxLine)},
	} {
		if r, err := l.Append("id", record, false); err == nil && fmt.Sprint(record) != "map[Time:<nil>]" {
			t.Errorf("%.50v was written: %.100s", record, r.Raw)
		}
	}
	if _, err := l.Append("", record{}, false); err == nil {
		t.Error("no id")
	}
}

// TestTampering changes a log in every simple way; each must show, and on the
// first line that it breaks.
func TestTampering(t *testing.T) {
	lines := func(l *Log) [][]byte {
		text, err := os.ReadFile(l.Path())
		must(t, err)
		return bytes.SplitAfter(bytes.TrimSuffix(text, nil), []byte("\n"))
	}
	for name, c := range map[string]struct {
		change func(l [][]byte) [][]byte
		line   int
	}{
		"changed": {func(l [][]byte) [][]byte {
			l[1] = bytes.Replace(l[1], []byte("success"), []byte("failed!"), 1)
			return l
		}, 2},
		"last changed": {func(l [][]byte) [][]byte {
			l[4] = bytes.Replace(l[4], []byte("success"), []byte("failed!"), 1)
			return l
		}, 5},
		"changed and sealed anew": {func(l [][]byte) [][]byte {
			rest, _ := unsealed(bytes.TrimSuffix(l[1], []byte("\n")))
			rest = bytes.Replace(rest, []byte("success"), []byte("failed!"), 1)
			l[1] = []byte(string(rest) + sealField + digest(rest) + "\"}\n")
			return l
		}, 3},
		"dropped":    {func(l [][]byte) [][]byte { return append(l[:1], l[2:]...) }, 2},
		"first gone": {func(l [][]byte) [][]byte { return l[1:] }, 1},
		"doubled":    {func(l [][]byte) [][]byte { return append(l[:2], l[1:]...) }, 3},
		"swapped":    {func(l [][]byte) [][]byte { l[1], l[2] = l[2], l[1]; return l }, 2},
		"garbage":    {func(l [][]byte) [][]byte { l[2] = []byte("garbage\n"); return l }, 3},
		"spaces":     {func(l [][]byte) [][]byte { l[1] = append([]byte(" "), l[1]...); return l }, 2},
		"blank line": {func(l [][]byte) [][]byte { l[1] = append([]byte("\n"), l[1]...); return l }, 2},
	} {
		l := open(t, t.TempDir())
		for i := range 5 {
			add(t, l, fmt.Sprintf("r%d", i), i)
		}
		must(t, os.WriteFile(l.Path(), bytes.Join(c.change(lines(l)), nil), 0o600))
		t.Run(name, func(t *testing.T) { broken(t, l, c.line) })
	}
}

// TestTorn cuts the log at every byte of its last line, as a crash does, and
// goes on.
func TestTorn(t *testing.T) {
	l := open(t, t.TempDir())
	add(t, l, "r0", 0)
	before := len(add(t, l, "r1", 1).Raw)
	text, err := os.ReadFile(l.Path())
	must(t, err)
	start := len(text) - before - 1
	for cut := start; cut <= len(text); cut++ {
		must(t, os.WriteFile(l.Path(), text[:cut], 0o600))
		torn := cut > start && cut < len(text)-1
		if torn {
			broken(t, l, 2)
		}
		add(t, l, "after", 2)
		want := 2 // r0, after
		switch {
		case torn:
			want++ // the repair
		case cut >= len(text)-1:
			want++ // r1 is whole, if without its newline
		}
		sound(t, l, want)
		add(t, l, "later", 3)
		sound(t, l, want+1)
		if !torn {
			continue
		}
		// The torn bytes are still there, and part of the chain.
		now, err := os.ReadFile(l.Path())
		must(t, err)
		if !bytes.HasPrefix(now, text[:cut]) {
			t.Fatalf("cut at %d: the torn bytes were removed", cut)
		}
		now[start]++
		must(t, os.WriteFile(l.Path(), now, 0o600))
		broken(t, l, 2)
		must(t, os.WriteFile(l.Path(), append(text[:start:start], now[cut+1:]...), 0o600))
		broken(t, l, 2)
	}
}

// TestTornRepair cuts the write that holds a repair.
func TestTornRepair(t *testing.T) {
	l := open(t, t.TempDir())
	add(t, l, "r0", 0)
	text, err := os.ReadFile(l.Path())
	must(t, err)
	torn := append(text, `{"schema":"hutch.rec`...)
	must(t, os.WriteFile(l.Path(), torn, 0o600))
	add(t, l, "r1", 1)
	whole, err := os.ReadFile(l.Path())
	must(t, err)
	for cut := len(torn); cut <= len(whole); cut++ {
		must(t, os.WriteFile(l.Path(), whole[:cut], 0o600))
		add(t, l, "r2", 2)
		if _, line, reason, err := l.Verify(); line != 0 || err != nil {
			t.Fatalf("cut at %d: line %d: %s %v", cut, line, reason, err)
		}
		all, err := l.List()
		must(t, err)
		if all[0].ID != "r0" || all[len(all)-1].ID != "r2" {
			t.Fatalf("cut at %d: %v", cut, all)
		}
	}
}

// TestRandomLogs: whatever is appended, cut and damaged at the end, the next
// append leaves a sound log; whatever is changed before the end shows.
func TestRandomLogs(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		os.Remove(filepath.Join(dir, fileName))
		l, err := Open(dir)
		if err != nil {
			rt.Fatal(err)
		}
		defer l.Close()
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "damage") {
				f, err := os.OpenFile(l.Path(), os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					rt.Fatal(err)
				}
				f.Write(rapid.SliceOf(rapid.SampledFrom([]byte("{}\n\x00a\""))).Draw(rt, "garbage"))
				f.Close()
			}
			pad := strings.Repeat("<", rapid.SampledFrom([]int{0, 10, 2000, 20_000, 70_000}).Draw(rt, "pad"))
			if _, err := l.Append("id", map[string]string{"pad": pad}, false); err != nil {
				rt.Fatal(err)
			}
		}
		n, line, reason, err := l.Verify()
		if line != 0 || err != nil {
			rt.Fatalf("line %d: %s %v", line, reason, err)
		}
		if n == 1 {
			return
		}
		text, _ := os.ReadFile(l.Path())
		end := bytes.LastIndexByte(text[:len(text)-1], '\n')
		at := rapid.IntRange(0, end).Draw(rt, "at")
		text[at] ^= byte(rapid.IntRange(1, 255).Draw(rt, "with"))
		os.WriteFile(l.Path(), text, 0o600)
		if _, line, _, err := l.Verify(); line == 0 || err != nil {
			rt.Fatalf("a change at byte %d does not show", at)
		}
	})
}

func TestGoroutines(t *testing.T) {
	dir := t.TempDir()
	l, other := open(t, dir), open(t, dir)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				use := l
				if j%2 == 0 {
					use = other
				}
				add(t, use, fmt.Sprintf("g%d-%d", i, j), j)
				if j%10 == 0 {
					if _, line, reason, err := l.Verify(); line != 0 || err != nil {
						t.Errorf("line %d: %s %v", line, reason, err)
					}
				}
			}
		})
	}
	wg.Wait()
	sound(t, l, 400)
}

func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "HUTCH_TEST_APPEND="+dir)
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v %s", err, out)
			}
		})
	}
	wg.Wait()
	sound(t, open(t, dir), 400)
}

// TestKilled kills writers at any moment.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	for i := range 15 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "HUTCH_TEST_APPEND="+dir, "HUTCH_TEST_FOREVER=1")
		must(t, cmd.Start())
		time.Sleep(time.Duration(20+i) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		add(t, l, "after", i)
		if _, line, reason, err := l.Verify(); line != 0 || err != nil {
			t.Fatalf("line %d: %s %v", line, reason, err)
		}
	}
}

// TestMovedAside: a log that was rotated or removed is begun anew.
func TestMovedAside(t *testing.T) {
	l := open(t, t.TempDir())
	add(t, l, "old", 1)
	must(t, os.Rename(l.Path(), l.Path()+".1"))
	if r := add(t, l, "new", 2); r.Prev != Genesis {
		t.Errorf("prev %s", r.Prev)
	}
	sound(t, l, 1)
}

func TestLongLines(t *testing.T) {
	l := open(t, t.TempDir())
	add(t, l, "first", 0)
	if _, err := l.Append("big", map[string]string{"x": strings.Repeat("y", 5<<20)}, false); err != nil {
		t.Fatal(err)
	}
	add(t, l, "small", 1)
	sound(t, l, 3)
	// A line beyond all bounds is damage like any other.
	f, err := os.OpenFile(l.Path(), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.Write(bytes.Repeat([]byte("z"), MaxLine+200<<10))
	must(t, err)
	f.Close()
	broken(t, l, 4)
	add(t, l, "after", 2)
	sound(t, l, 5)
}

func TestNoRoomToWrite(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root writes everywhere")
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o555))
	defer os.Chmod(dir, 0o755)
	for _, d := range []string{dir, dir + "/state"} {
		if _, err := Open(d); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "XDG_STATE_HOME") {
			t.Errorf("%v", err)
		}
	}
	// What is there can still be read.
	must(t, os.Chmod(dir, 0o755))
	l := open(t, dir)
	if err := l.Writable(); err != nil {
		t.Error(err)
	}
	add(t, l, "a", 1)
	must(t, os.Chmod(l.Path(), 0o400))
	l = open(t, dir)
	sound(t, l, 1)
	_, err := l.Append("b", record{}, false)
	if l.Writable() == nil || err == nil || !strings.Contains(err.Error(), "XDG_STATE_HOME") {
		t.Error(err)
	}
}

func TestNotALog(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/target", []byte("precious"), 0o600))
	must(t, os.Symlink("target", dir+"/"+fileName))
	if _, err := Open(dir); err == nil {
		t.Error("a symlink was followed")
	}
	must(t, os.Remove(dir+"/"+fileName))
	must(t, exec.Command("mkfifo", dir+"/"+fileName).Run())
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
}

// FuzzLog gives any bytes for a log: readers must not fall over, Verify and
// readTail must agree, and one append makes the end sound.
func FuzzLog(f *testing.F) {
	dir := f.TempDir()
	l, err := Open(dir)
	must(f, err)
	for i := range 3 {
		add(f, l, "r", i)
	}
	good, err := os.ReadFile(l.Path())
	must(f, err)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(good, "torn"...))
	f.Add(append([]byte("\n\n"), good...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		var whole chain
		must(t, scan(bytes.NewReader(text), whole.next))
		whole.end()
		end, err := readTail(bytes.NewReader(text), int64(len(text)))
		must(t, err)
		if whole.broken == 0 && len(text) > 0 && (end.prev != whole.prev || end.tornBytes != 0) {
			t.Errorf("a sound log ends in %s for Verify, in %+v for Append", whole.prev, end)
		}
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, fileName), text, 0o600))
		l := open(t, dir)
		if _, err := l.List(); err != nil {
			t.Error(err)
		}
		_, line, _, _ := l.Verify()
		if line != whole.broken {
			t.Errorf("Verify says line %d, scan %d", line, whole.broken)
		}
		add(t, l, "next", 1)
		n, after, reason, err := l.Verify()
		must(t, err)
		// Damage before the last receipt stays; that at the end is repaired.
		if after != 0 && (line == 0 || after != line) {
			t.Errorf("broken at %d before, at %d after an append (%d sound): %s", line, after, n, reason)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
		sync bool
	}{{"1KB", 1 << 10, false}, {"100KB", 100 << 10, false}, {"1KB-sync", 1 << 10, true}} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			rec := map[string]string{"x": strings.Repeat("y", c.size)}
			for b.Loop() {
				l, err := Open(dir) // as a one-shot run does
				must(b, err)
				_, err = l.Append("id", rec, c.sync)
				must(b, err)
				l.Close()
			}
		})
	}
}

func TestALogThatStaysOpenSeesWhatOthersAppend(t *testing.T) {
	dir := t.TempDir()
	first, err := Open(dir)
	must(t, err)
	defer first.Close()
	second, err := Open(dir)
	must(t, err)
	defer second.Close()
	for i := range 20 {
		for n := 0; n <= i%3; n++ {
			add(t, first, "first", i)
		}
		add(t, second, "second", i)
	}
	// A torn end is not its own: what it remembers must not hide that.
	file, err := os.OpenFile(first.Path(), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = file.WriteString(`{"schema":"hutch.rec`)
	must(t, err)
	must(t, file.Close())
	add(t, second, "after", 1)
	add(t, first, "after", 2)
	if n, line, reason, err := first.Verify(); err != nil || line != 0 || n < 60 {
		t.Errorf("%d sound, broken at %d: %s, %v", n, line, reason, err)
	}
}

func TestReservedFieldsAreFoundHoweverTheyAreWritten(t *testing.T) {
	for _, record := range []string{`{"prev":1}`, `{"PREV":1}`, `{"\u0070rev":1}`, "{\"\u017feal\":1}", `{ "prev" : 1 }`, `{"a":{"b":1},"id":2}`} {
		if _, err := fieldsOf(json.RawMessage(record)); err == nil {
			t.Errorf("%s was taken", record)
		}
	}
	for _, record := range []string{`{"a":{"prev":1}}`, `{"a":"\"prev\":"}`, `{"id_of":1}`} {
		if _, err := fieldsOf(json.RawMessage(record)); err != nil {
			t.Errorf("%s: %v", record, err)
		}
	}
}
