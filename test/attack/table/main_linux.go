// Command table runs the attacks in full, as every user it can, and prints what
// became of them.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

type row struct {
	Attack, Kind, Who, Strategy, Mode, Verdict, Why string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func run() error {
	dir, err := os.MkdirTemp("", "hutch-table-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The tests run as more than one user.
	if err := os.Chmod(dir, 0o1777|os.ModeSticky); err != nil {
		return err
	}
	cmd := exec.Command("go", append([]string{"run", "./test/runner", "-pkg", "test/attack$", "-timeout", "60m"}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), "HUTCH_PROOF=1", "HUTCH_ATTACK_TABLE="+dir)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	failed := cmd.Run()

	rows, err := read(dir)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return errors.Join(errors.New("no attack was made"), failed)
	}
	count := map[string]int{}
	fmt.Printf("%-24s %-10s %-6s %-14s %-9s %-14s %s\n", "attack", "kind", "who", "strategy", "mode", "verdict", "what was reported")
	for _, r := range rows {
		count[r.Verdict]++
		why := r.Why
		if len(why) > 120 {
			why = why[:120] + "…"
		}
		fmt.Printf("%-24s %-10s %-6s %-14s %-9s %-14s %s\n", r.Attack, r.Kind, r.Who, r.Strategy, r.Mode, r.Verdict, why)
	}
	var sums []string
	for verdict, n := range count {
		sums = append(sums, fmt.Sprintf("%d %s", n, verdict))
	}
	slices.Sort(sums)
	fmt.Println(strings.Join(sums, ", "))
	for _, name := range neverShown(rows) {
		fmt.Println("never seen to escape:", name)
	}
	return failed
}

func read(dir string) ([]row, error) {
	files, err := filepath.Glob(filepath.Join(dir, "rows-*"))
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in := bufio.NewScanner(f)
		for in.Scan() {
			var r row
			if err := json.Unmarshal(in.Bytes(), &r); err != nil {
				return nil, err
			}
			rows = append(rows, r)
		}
		if err := in.Err(); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// neverShown lists the attacks that did not escape in any way without their
// guard, and why not.
func neverShown(rows []row) []string {
	shown, why := map[string]bool{}, map[string]string{}
	for _, r := range rows {
		switch {
		case r.Verdict == "SHOWN":
			shown[r.Attack] = true
		case r.Mode == "guard off":
			why[r.Attack] = r.Why
		}
	}
	var list []string
	for name, reason := range why {
		if !shown[name] {
			list = append(list, name+": "+reason)
		}
	}
	slices.Sort(list)
	return list
}
