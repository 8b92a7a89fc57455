package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// files is how many files have a generation's number as their content.
const files = 12

// become makes a directory that is of generation n-1, or empty, one of
// generation n: every kind of change, each with the number in it.
func become(dir string, n int) error {
	at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	number := strconv.Itoa(n)
	var errs []error
	do := func(err error) { errs = append(errs, err) }
	write := func(path string) { do(os.WriteFile(path, []byte(number), 0o644)) }

	do(os.MkdirAll(at("dir/deep"), 0o755))
	for i := range files {
		name := fmt.Sprintf("f%d", i)
		if i%3 == 0 {
			name = filepath.Join("dir/deep", name)
		}
		write(at(name))
	}
	// A directory comes and the last one goes; so do files.
	do(os.MkdirAll(at("tree-"+number, "in"), 0o755))
	write(at("tree-"+number, "in", "x"))
	do(os.RemoveAll(at("tree-" + strconv.Itoa(n-1))))
	write(at("only-" + number))
	do(os.RemoveAll(at("only-" + strconv.Itoa(n-1))))
	// A link, a mode and an attribute.
	do(os.RemoveAll(at("link")))
	do(os.Symlink(number, at("link")))
	if _, err := os.Lstat(at("mode")); err != nil {
		do(os.WriteFile(at("mode"), nil, 0o644))
		do(os.WriteFile(at("attr"), nil, 0o644))
	}
	do(os.Chmod(at("mode"), modeOf(n)))
	do(unix.Setxattr(at("attr"), "user.generation", []byte(number), 0))
	// Something that is a file in one generation is a directory in the next.
	do(os.RemoveAll(at("turns")))
	if n%2 == 0 {
		write(at("turns"))
	} else {
		do(os.Mkdir(at("turns"), 0o755))
		write(at("turns/x"))
	}
	return errors.Join(errs...)
}

// modeOf stands for a number in a mode that the handoff guard lets pass.
func modeOf(n int) os.FileMode { return []os.FileMode{0o600, 0o604, 0o640, 0o644}[n%4] }

// generation tells which one all of a directory is of, and fails where it is
// not all of one.
func generation(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "f1"))
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return 0, fmt.Errorf("f1 holds %q", text)
	}
	want, err := os.MkdirTemp(filepath.Dir(dir), "want-") // on the same file system: not each knows attributes
	if err != nil {
		return n, err
	}
	defer os.RemoveAll(want)
	if err := become(want, n); err != nil {
		return n, err
	}
	a, err := describe(want)
	if err != nil {
		return n, err
	}
	b, err := describe(dir)
	if err != nil {
		return n, err
	}
	for path, is := range b {
		if a[path] != is {
			err = errors.Join(err, fmt.Errorf("%s is %q; in generation %d it is %q", path, is, n, a[path]))
		}
	}
	for path, is := range a {
		if _, ok := b[path]; !ok {
			err = errors.Join(err, fmt.Errorf("%s is missing; in generation %d it is %q", path, n, is))
		}
	}
	return n, err
}

// describe says in one string what each path of a directory is.
func describe(dir string) (map[string]string, error) {
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return err
		}
		if rel == ".hutch" {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		is := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			value := make([]byte, 64)
			n, _ := unix.Getxattr(path, "user.generation", value)
			is += fmt.Sprintf(" %s %s", text, value[:max(n, 0)])
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			is += " " + target
		}
		all[rel] = is
		return nil
	})
	return all, err
}
