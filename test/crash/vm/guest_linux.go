package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"hutch/test/vm/machine"
)

// Where the disk of the guest is mounted, and what lies on it.
const (
	diskAt    = "/disk"
	workspace = "ws"
	state     = "state"
)

// guest is the guest's init: it promotes generation after generation and says
// so on the console, until the machine dies. It never returns.
func guest() {
	fmt.Println("FAILED", strings.ReplaceAll(generations().Error(), "\n", "; "))
	machine.PowerOff()
}

// generations goes on until something fails.
func generations() error {
	if err := machine.Boot(); err != nil {
		return err
	}
	fs, err := os.ReadFile("/etc/disk")
	if err != nil {
		return err
	}
	if err := machine.Mount("/dev/vda", diskAt, string(fs), 0, ""); err != nil {
		return err
	}
	ws := filepath.Join(diskAt, workspace)
	if _, err := hutch("recover"); err != nil {
		return err
	}
	n, err := generation(ws)
	if err != nil {
		return err
	}
	fmt.Println("AT", n)
	for {
		n++
		out, err := hutch("run", "--json", "--preserve", "--", "/bin/guest", "become", fmt.Sprint(n))
		if err != nil {
			return err
		}
		var box struct{ ID string }
		if err := json.Unmarshal(out, &box); err != nil {
			return err
		}
		fmt.Println("BEGIN", n)
		if _, err := hutch("commit", box.ID); err != nil {
			return err
		}
		fmt.Println("DONE", n)
	}
}

func hutch(args ...string) ([]byte, error) {
	cmd := exec.Command("/bin/hutch", args...)
	cmd.Dir = filepath.Join(diskAt, workspace)
	cmd.Env = []string{"PATH=/bin", "HOME=/root", "TMPDIR=/tmp", "XDG_STATE_HOME=" + filepath.Join(diskAt, state)}
	out, err := cmd.Output()
	if err != nil {
		why := ""
		if exit, ok := err.(*exec.ExitError); ok {
			why = string(exit.Stderr)
		}
		return out, fmt.Errorf("hutch %q: %w: %s %s", args, err, why, out)
	}
	return out, nil
}
