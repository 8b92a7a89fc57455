package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// node is a file of the model: its mode, and its one line of content, or where
// it leads.
type node struct {
	kind byte // 'f', 'd' or 'l'
	mode uint32
	text string
}

func (n node) String() string { return fmt.Sprintf("%c %o %q", n.kind, n.mode, n.text) }

// tree maps paths below a workspace to what lies there.
type tree map[string]node

// diff names the paths in which two trees differ, and how.
func (t tree) diff(got tree) []string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(t)) {
		if g, ok := got[p]; !ok {
			out = append(out, fmt.Sprintf("%s is not there (%v)", p, t[p]))
		} else if g != t[p] {
			out = append(out, fmt.Sprintf("%s is %v, not %v", p, g, t[p]))
		}
	}
	for _, p := range slices.Sorted(maps.Keys(got)) {
		if _, ok := t[p]; !ok {
			out = append(out, fmt.Sprintf("%s is there (%v)", p, got[p]))
		}
	}
	return out
}

// under lists a directory of the model and what lies below it.
func (t tree) under(dir string) []string {
	var out []string
	for p := range t {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// changes are the lists that a diff must give for the way from one tree to
// another: created, modified and deleted paths, directories with a slash.
func (t tree) changes(to tree) (lists [3][]string) {
	show := func(p string, n node) string {
		if n.kind == 'd' {
			return p + "/"
		}
		return p
	}
	for p, n := range to {
		old, ok := t[p]
		switch {
		case !ok:
			lists[0] = append(lists[0], show(p, n))
		case old != n:
			lists[1] = append(lists[1], show(p, n))
		}
	}
	for p, n := range t {
		if _, ok := to[p]; !ok {
			lists[2] = append(lists[2], show(p, n))
		}
	}
	for i := range lists {
		slices.Sort(lists[i])
	}
	return lists
}

// A step is a line of shell and what it does to a tree. All but the removal of
// a directory, and the copy of one that cannot be renamed, is one act or two.
type step struct {
	shell string
	do    func(tree)
	file  string // that is empty for a moment; ""
}

// Names are few, so that things meet.
var (
	fileNames = []string{"f0", "f1", "f2", "f3", "f4", "f5"}
	dirNames  = []string{"d0", "d1", "d2"}
)

const deepest = 3

// loose is a file that a background process writes at while others look: it is
// compared by itself.
const loose = "w.log"

// token is content that nothing else has.
func token(r *rand.Rand) string { return strconv.FormatUint(r.Uint64()>>4, 36) }

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

func (t tree) all(kind byte) []string {
	var out []string
	for p, n := range t {
		if n.kind == kind {
			out = append(out, p)
		}
	}
	slices.Sort(out) // maps have another order each time, and a seed must not
	return out
}

// place picks a directory and a name in it.
func (t tree) place(r *rand.Rand, names []string) string {
	dirs := append([]string{"."}, t.all('d')...)
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return strings.Count(d, "/")+2 > deepest })
	return path.Join(pick(r, dirs), pick(r, names))
}

// next draws a step that is possible in a tree.
func (t tree) next(r *rand.Rand) step {
	for {
		if s, ok := t.try(r); ok {
			return s
		}
	}
}

func (t tree) try(r *rand.Rand) (step, bool) {
	switch r.IntN(12) {
	case 0, 1, 2, 3: // write
		p, text := t.place(r, fileNames), token(r)
		n, there := t[p]
		if there && n.kind != 'f' {
			return step{}, false
		}
		if !there {
			n = node{'f', 0o644, ""}
		}
		n.text = text
		return step{fmt.Sprintf("printf %s >%s", text, p), func(t tree) { t[p] = n }, p}, true
	case 4: // append
		files := t.all('f')
		if len(files) == 0 {
			return step{}, false
		}
		p, text := pick(r, files), token(r)
		n := t[p]
		if n.text += text; len(n.text) > 200 {
			return step{}, false
		}
		return step{fmt.Sprintf("printf %s >>%s", text, p), func(t tree) { t[p] = n }, ""}, true
	case 5: // remove
		list := append(t.all('f'), t.all('l')...)
		if len(list) == 0 {
			return step{}, false
		}
		p := pick(r, list)
		return step{"rm " + p, func(t tree) { delete(t, p) }, ""}, true
	case 6: // a directory
		p := t.place(r, dirNames)
		if _, there := t[p]; there {
			return step{}, false
		}
		return step{"mkdir " + p, func(t tree) { t[p] = node{'d', 0o755, ""} }, ""}, true
	case 7: // remove one
		dirs := t.all('d')
		if len(dirs) == 0 || r.IntN(2) == 0 {
			return step{}, false
		}
		p := pick(r, dirs)
		return step{"rm -r " + p, func(t tree) {
			for _, q := range t.under(p) {
				delete(t, q)
			}
		}, ""}, true
	case 8: // rename a file
		files := t.all('f')
		if len(files) == 0 {
			return step{}, false
		}
		from, to := pick(r, files), t.place(r, fileNames)
		if n, there := t[to]; from == to || there && n.kind == 'd' {
			return step{}, false
		}
		return step{fmt.Sprintf("mv %s %s", from, to), func(t tree) { t[to] = t[from]; delete(t, from) }, ""}, true
	case 9: // rename a directory
		dirs := t.all('d')
		if len(dirs) == 0 {
			return step{}, false
		}
		from, to := pick(r, dirs), t.place(r, dirNames)
		if _, there := t[to]; there || strings.HasPrefix(to+"/", from+"/") {
			return step{}, false
		}
		for _, p := range t.under(from) {
			if strings.Count(to+strings.TrimPrefix(p, from), "/")+1 > deepest {
				return step{}, false
			}
		}
		return step{fmt.Sprintf("mv %s %s", from, to), func(t tree) {
			for _, p := range t.under(from) {
				t[to+strings.TrimPrefix(p, from)] = t[p]
				delete(t, p)
			}
		}, ""}, true
	case 10: // change a mode
		list := append(t.all('f'), t.all('d')...)
		if len(list) == 0 {
			return step{}, false
		}
		slices.Sort(list)
		p := pick(r, list)
		n := t[p]
		n.mode = pick(r, []uint32{0o644, 0o600, 0o755})
		if n.kind == 'd' {
			n.mode = pick(r, []uint32{0o755, 0o700})
		}
		return step{fmt.Sprintf("chmod %o %s", n.mode, p), func(t tree) { t[p] = n }, ""}, true
	default: // a link
		p, to := t.place(r, fileNames), pick(r, []string{"f0", "../f1", "/etc/hostname", "nowhere"})
		if _, there := t[p]; there {
			return step{}, false
		}
		return step{fmt.Sprintf("ln -s %s %s", to, p), func(t tree) { t[p] = node{'l', 0o777, to} }, ""}, true
	}
}

// script draws steps, and returns the states of a tree before the first and
// after each.
func (t tree) script(r *rand.Rand, most int) (steps []step, states []tree) {
	states = []tree{t}
	for range 1 + r.IntN(most) {
		now := maps.Clone(states[len(states)-1])
		s := now.next(r)
		s.do(now)
		steps, states = append(steps, s), append(states, now)
	}
	return steps, states
}

func shellOf(steps []step) string {
	lines := []string{"set -e"}
	for _, s := range steps {
		lines = append(lines, s.shell)
	}
	return strings.Join(lines, "\n")
}

// within reports whether a tree is what a script that was cut off can leave:
// all that is done before one step and, of that, any part.
func within(got tree, steps []step, states []tree) bool {
	if len(states[0].diff(got)) == 0 {
		return true
	}
	for i, s := range steps {
		before, after := states[i], states[i+1]
		ok := true
		for _, t := range []tree{before, after, got} {
			for p := range t {
				g, there := got[p]
				b, was := before[p]
				a, is := after[p]
				empty := there && p == s.file && g.kind == 'f' && g.text == ""
				ok = ok && (there == was && g == b || there == is && g == a || empty)
			}
		}
		if ok || halfMoved(before, got) {
			return true
		}
	}
	return false
}

// halfMoved reports whether a tree is one in which a directory was being moved
// when its box was killed, as docs/overlay.md says: a part of it lies in a
// directory beside it. No file may be lost by that.
func halfMoved(before, got tree) bool {
	found := false
	for p := range got {
		found = found || strings.HasPrefix(path.Base(p), ".hutch-move-")
	}
	files := func(t tree) (list []string) {
		for _, n := range t {
			if n.kind != 'd' {
				list = append(list, n.String())
			}
		}
		slices.Sort(list)
		return list
	}
	return found && slices.Equal(files(before), files(got))
}

// lister prints a tree: a line for each file, an empty one, and all lines of all
// files.
const lister = `find . -mindepth 1 -printf '%y %m %P %l\n' && echo && { grep -rs '' . || :; }`

// listed reads what lister printed. What is loose comes apart.
func listed(text string) (tree, []string, error) {
	t, lines := tree{}, []string(nil)
	shape, content, ok := strings.Cut(text, "\n\n")
	if !ok {
		shape, content, ok = "", strings.TrimPrefix(text, "\n"), strings.HasPrefix(text, "\n")
	}
	if !ok {
		return nil, nil, fmt.Errorf("this is no list of a tree: %.300q", text)
	}
	for line := range strings.Lines(shape + "\n") {
		f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(f) != 4 {
			if line == "\n" {
				continue
			}
			return nil, nil, fmt.Errorf("this line is no file: %q", line)
		}
		mode, err := strconv.ParseUint(f[1], 8, 32)
		if err != nil {
			return nil, nil, fmt.Errorf("this line is no file: %q", line)
		}
		t[f[2]] = node{f[0][0], uint32(mode), f[3]}
	}
	for line := range strings.Lines(content) {
		p, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		p = strings.TrimPrefix(p, "./")
		n, there := t[p]
		switch {
		case p == loose:
			lines = append(lines, text)
		case !ok || !there || n.text != "" || n.kind != 'f':
			return nil, nil, fmt.Errorf("this line is of no file that is there: %q", line)
		default:
			n.text = text
			t[p] = n
		}
	}
	delete(t, loose)
	return t, lines, nil
}

// counted checks what a writer in the background left: the numbers from 1 on,
// and again where another writer began.
func counted(lines []string) error {
	last := 0
	for i, line := range lines {
		n, err := strconv.Atoi(line)
		if err != nil || n != last+1 && n != 1 {
			return fmt.Errorf("line %d of %s is %q after %d", i+1, loose, line, last)
		}
		last = n
	}
	return nil
}

// onHost reads a workspace from outside, less hutch's own directory.
func onHost(dir string) (tree, error) {
	t := tree{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch rel {
		case ".":
			return nil
		case ".hutch":
			return filepath.SkipDir
		case loose:
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n := node{kind: 'f', mode: uint32(info.Mode().Perm())}
		switch {
		case d.IsDir():
			n.kind = 'd'
		case d.Type() == fs.ModeSymlink:
			n.kind = 'l'
			n.text, err = os.Readlink(p)
		default:
			var text []byte
			text, err = os.ReadFile(p)
			n.text = string(text)
		}
		t[rel] = n
		return err
	})
	return t, err
}

// put makes a workspace that holds a tree.
func (t tree) put(dir string) error {
	var errs []error
	for _, p := range slices.Sorted(maps.Keys(t)) {
		n, at := t[p], filepath.Join(dir, p)
		switch n.kind {
		case 'd':
			errs = append(errs, os.Mkdir(at, 0o755))
		case 'l':
			errs = append(errs, os.Symlink(n.text, at))
			continue
		default:
			errs = append(errs, os.WriteFile(at, []byte(n.text), 0o644))
		}
		errs = append(errs, os.Chmod(at, fs.FileMode(n.mode)))
	}
	return errors.Join(errs...)
}
