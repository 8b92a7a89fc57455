package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"hutch/test/vm/machine"
)

// pack makes the first root file system of a guest: busybox for a shell and
// tools, the host's python3, which many tests speak, and what is tested.
func pack(dir, own string, kernel machine.Kernel, b boot) error {
	var a machine.Archive
	if err := kernel.Pack(&a); err != nil {
		return err
	}
	for _, d := range []string{"usr/bin", "usr/lib", "usr/lib64", "etc", "home", "vm", "var", "opt", "mnt"} {
		a.Dir(d)
	}
	for _, name := range []string{"bin", "lib", "lib64"} {
		a.Link(name, "usr/"+name)
	}
	a.Link("sbin", "usr/bin")
	a.Link("usr/sbin", "bin")
	plan, err := json.Marshal(guestPlan{Turns: b.turns, Reflink: b.reflink, Initramfs: b.name == ""})
	if err != nil {
		return err
	}
	a.Text("vm/plan", string(plan))
	a.Text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\ntester:x:1000:1000::/home/tester:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
	a.Text("etc/group", "root:x:0:\ntester:x:1000:\nnogroup:x:65534:\n")
	a.Text("etc/hosts", "127.0.0.1 localhost\n")
	a.Text("etc/hostname", "guest\n")
	files := map[string]string{"init": dir + "/guest", "vm/hutch": *binary}
	for _, t := range b.turns {
		files["vm/"+t.Binary] = filepath.Join(dir, t.Binary)
	}
	files["vm/"+attacks] = filepath.Join(dir, attacks)
	for name, from := range files {
		if err := a.File(name, from); err != nil {
			return err
		}
	}
	if err := busybox(&a); err != nil {
		return err
	}
	if err := dynamic(&a); err != nil {
		return err
	}
	return a.Write(own + "/initramfs")
}

// real are tools that busybox lacks, or has in another form than tests speak;
// its shell and its find would not start them.
var real = []string{"bash", "cp", "dash", "find", "getent", "hostname", "nice", "touch"}

func busybox(a *machine.Archive) error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	if err := a.File("usr/bin/busybox", path); err != nil {
		return err
	}
	applets, err := exec.Command(path, "--list").Output()
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(applets)) {
		if name != "busybox" && name != "init" && name != "sh" && !slices.Contains(real, name) {
			a.Link("usr/bin/"+name, "busybox")
		}
	}
	a.Link("usr/bin/sh", "dash")
	return nil
}

// heavy is what nobody asks of a guest's python.
var heavy = regexp.MustCompile(`/(test|tests|idlelib|lib2to3|tkinter|turtledemo|ensurepip|pydoc_data|distutils|unittest|xmlrpc|config-[^/]*|__pycache__|dist-packages|venv)(/|$)`)

// dynamic packs the system's python3 with its library, a few tools, and the
// shared objects of all.
func dynamic(a *machine.Archive) error {
	const script = `import os, sys, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path("stdlib"))`
	out, err := exec.Command("/usr/bin/python3", "-I", "-c", script).Output()
	if err != nil {
		return fmt.Errorf("no python3 for the guest (make deps): %w", err)
	}
	program, library, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err := a.File("usr/bin/"+filepath.Base(program), program); err != nil {
		return err
	}
	if filepath.Base(program) != "python3" {
		a.Link("usr/bin/python3", filepath.Base(program))
	}
	objects := []string{program}
	for _, tool := range real {
		path, err := exec.LookPath("/usr/bin/" + tool)
		if err != nil {
			return err
		}
		if err := a.File("usr/bin/"+tool, path); err != nil {
			return err
		}
		objects = append(objects, path)
	}
	err = filepath.WalkDir(library, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if heavy.MatchString(path) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		if strings.HasSuffix(path, ".so") {
			objects = append(objects, path)
		}
		return a.File(path, path)
	})
	if err != nil {
		return err
	}
	return sharedObjects(a, objects)
}

var sharedObject = regexp.MustCompile(`(/\S+) \(0x`)

// sharedObjects packs what programs load, where they look for it.
func sharedObjects(a *machine.Archive, programs []string) error {
	out, err := exec.Command("ldd", programs...).Output()
	if err != nil {
		return fmt.Errorf("ldd: %w", err)
	}
	var done []string
	for _, m := range sharedObject.FindAllStringSubmatch(string(out), -1) {
		path := m[1]
		// /lib is usr/lib in the guest.
		to := "usr" + strings.TrimPrefix(path, "/usr")
		if slices.Contains(done, to) {
			continue
		}
		done = append(done, to)
		file, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		if _, err := os.Stat(file); err != nil {
			return err
		}
		if err := a.File(to, file); err != nil {
			return err
		}
	}
	return nil
}
