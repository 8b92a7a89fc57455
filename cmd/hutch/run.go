package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"hutch"
	"hutch/internal/box"
	"hutch/internal/outcome"
	"hutch/internal/policy"
)

type runFlags struct {
	workspace, cwd   string
	force            bool
	command          string
	commit, preserve bool
	diff, json       bool
	strategy         string
	layer, layerDir  string
	layerSize        policy.Size
	promotionFlags
	policyFlags
	tty     bool
	user    string
	require []string
	rung    choice
}

func runCommand() *cobra.Command {
	f := &runFlags{
		promotionFlags: newPromotionFlags(),
		rung:           choice{value: "full", of: []string{"full"}},
	}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a command on a branch of the workspace",
		Long: `Run a command on a copy-on-write branch of the workspace, in a kernel jail.
Nothing reaches the workspace unless --commit is given and the command exits 0;
then the whole change does.

The exit code is the command's own; 128+n when signal n ended it; 124 at the
deadline and at the limit of processor time; 137 when the limit of memory, disk
or output ended it; 126 or 127 when it could not be started; 125 for a conflict,
for a change that is held, for what the policy refuses before the start, and for
hutch's own errors.`,
		Example: `  hutch run --commit -- pytest
  hutch run --diff -- sed -i s/foo/bar/ a.txt
  hutch run --timeout 30s --memory 256M --json -- make test`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.SortFlags = false
	flags.StringVar(&f.workspace, "workspace", "", "the workspace (default: the current directory)")
	flags.StringVar(&f.cwd, "cwd", "", "the same as --workspace")
	flags.BoolVar(&f.force, "force", false, "allow / or a home directory as workspace")
	flags.StringVar(&f.command, "cmd", "", "a command line, given to sh -c")
	flags.BoolVar(&f.commit, "commit", false, "promote the change when the command exits 0")
	flags.BoolVar(&f.preserve, "preserve", false, "keep the box for hutch diff, commit or discard")
	flags.BoolVar(&f.diff, "diff", false, "print a unified diff of the change")
	flags.BoolVar(&f.json, "json", false, "print the outcome as one JSON object")
	flags.StringVar(&f.strategy, "strategy", "auto", "how to branch: auto, overlay, reflink or copy")
	flags.StringVar(&f.layer, "layer", "disk", "where the box writes: disk or ram")
	flags.TextVar(&f.layerSize, "layer-size", policy.Size(box.DefaultRAM), "`size` of a layer in RAM")
	flags.StringVar(&f.layerDir, "layer-dir", "", "a directory for layers on the workspace's file system")
	f.promotionFlags.add(flags)
	f.policyFlags.add(flags)
	flags.BoolVar(&f.tty, "tty", false, "give the command a terminal of its own")
	flags.StringVar(&f.user, "user", "", "run as this `user` (root only), or root")
	flags.StringSliceVar(&f.require, "require", nil, "fail when this is missing: limits, proc, landlock")
	flags.Var(&f.rung, "rung", "the confinement demanded: full")
	return cmd
}

// notRun is the outcome of a command line that is wrong.
func notRun(err error) *outcome.Outcome {
	out := outcome.New()
	out.Error = err.Error()
	return out
}

func (f *runFlags) run(cmd *cobra.Command, args []string) error {
	opts, err := f.options(cmd, args)
	if err != nil {
		if f.json {
			printJSON(notRun(err))
		}
		return err
	}
	signals := make(chan os.Signal, 4)
	forwarded := make(chan syscall.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	opts.Signals = forwarded
	restore := func() {}
	if f.tty {
		opts.Resized, restore = enterRaw(os.Stdin)
		defer restore()
	}
	go forward(signals, forwarded, restore)
	out, err := box.Run(opts)
	if f.json {
		if jerr := printJSON(out); jerr != nil {
			return jerr
		}
	} else if out.Patch != "" {
		if werr := showPatch(out.Patch); werr != nil {
			return werr
		}
	}
	if err != nil {
		return errors.Join(append([]error{err}, f.asides(out)...)...)
	}
	f.explain(out)
	if out.ExitCode != 0 {
		return exit(out.ExitCode)
	}
	return nil
}

// patience is how long hutch may go on after a signal: enough for the command
// to end and for its change to be dropped.
const patience = 5 * time.Second

// forward hands signals to the run. One that has not ended the process after a
// while ends it as if nobody had caught it: the box dies with us, and a
// promotion is made to be interrupted. restore comes before that.
func forward(from <-chan os.Signal, to chan<- syscall.Signal, restore func()) {
	for received := range from {
		s, ok := received.(syscall.Signal)
		if !ok {
			continue
		}
		select {
		case to <- s:
		default: // enough were sent
		}
		time.AfterFunc(patience, func() {
			restore()
			signal.Reset(s)
			if self, err := os.FindProcess(os.Getpid()); err == nil {
				_ = self.Signal(s)
			}
		})
	}
}

// sayEnd says on standard error what ended a command, where that was not the
// command itself.
func sayEnd(out *hutch.Outcome) bool {
	switch {
	case out.Status == outcome.Timeout:
		say("timeout: the deadline passed; the command and all it started were ended")
	case out.Status == outcome.MemoryExceeded:
		say("memory limit exceeded; the command and all it started were ended")
	case out.Status == outcome.OutputExceeded:
		say("output limit exceeded; the command and all it started were ended")
	case out.Status == outcome.DiskExceeded:
		say("disk limit exceeded; the command and all it started were ended")
	case out.Status == outcome.CPUExceeded:
		say("limit of processor time exceeded; the command and all it started were ended")
	case out.Status == outcome.Denied && out.Signal == "SIGSYS":
		say("denied: the command used the 32-bit interface of the kernel, which boxes do not have")
	default:
		return false
	}
	return true
}

// explainEnd says on standard error what the output of a command of a box that
// lasts does not.
func explainEnd(out *hutch.Outcome, asJSON bool) {
	if !sayEnd(out) && out.Error != "" {
		say("%s", out.Error)
	}
	if asJSON {
		return
	}
	for _, line := range explainViolations(out.Violations) {
		say("%s", line)
	}
	for _, note := range out.Notes {
		say("%s", note)
	}
}

// explain says on standard error what the command's own output does not.
func (f *runFlags) explain(out *hutch.Outcome) {
	switch {
	case sayEnd(out):
	case out.Status == outcome.Held: // said below, a line each
	case out.Status == outcome.Conflict && !f.json:
		for _, line := range explainConflicts(out.ID, out.Conflicts, f.onConflict.value) {
			say("%s", line)
		}
	case out.Error != "":
		say("%s", out.Error)
	}
	if !f.json {
		for _, line := range explainViolations(out.Violations) {
			say("%s", line)
		}
		for _, line := range explainGuard(out.ID, out.Held, out.Flagged, out.Committed) {
			say("%s", line)
		}
		for _, line := range explainSettled(out.Resolved) {
			say("%s", line)
		}
	}
	for _, aside := range f.asides(out) {
		say("%v", aside)
	}
	if f.json {
		return
	}
	if f.commit {
		for _, skipped := range out.Skipped[:min(len(out.Skipped), 10)] {
			say("not promoted: %q: %s", skipped.Path, skipped.Reason)
		}
	}
	if out.Kept {
		if out.Left > 0 {
			say("%s in the box", staying(out.Left))
		}
		say("the box is kept: hutch diff %s, hutch commit %s, hutch discard %s", out.ID, out.ID, out.ID)
	}
}

// asides is what is worth knowing besides; with --json it is in the outcome.
func (f *runFlags) asides(out *hutch.Outcome) []error {
	var list []error
	for _, note := range out.Notes {
		if !f.json {
			list = append(list, errors.New(note))
		}
	}
	return list
}

func (f *runFlags) options(cmd *cobra.Command, args []string) (hutch.Options, error) {
	opts := hutch.Options{
		Argv: args, Workspace: f.workspace, Force: f.force, Strategy: hutch.Strategy(f.strategy), LayerDir: f.layerDir, RAMSize: int64(f.layerSize),
		Commit: f.commit, Preserve: f.preserve, Patch: f.diff,
		User: f.user, Require: f.require,
	}
	var err error
	if opts.Promotion, err = f.promotion(); err != nil {
		return opts, err
	}
	changed := cmd.Flags().Changed
	if f.cwd != "" {
		if f.workspace != "" && f.workspace != f.cwd {
			return opts, errors.New("--workspace and --cwd name different directories; give one of them")
		}
		opts.Workspace = f.cwd
	}
	if changed("cwd") && f.cwd == "" || changed("workspace") && f.workspace == "" {
		return opts, errors.New("--workspace: the name is empty; give a directory")
	}
	if changed("layer-dir") && f.layerDir == "" {
		return opts, errors.New("--layer-dir: the name is empty; give a directory")
	}
	if changed("cmd") {
		if len(args) > 0 {
			return opts, errors.New("--cmd and a command after it were both given; give one of them")
		}
		if strings.TrimSpace(f.command) == "" {
			return opts, errors.New("no command: --cmd is empty")
		}
		opts.Argv = []string{"sh", "-c", f.command}
	}
	if len(opts.Argv) == 0 {
		return opts, errors.New("no command: give one after --, or --cmd STRING")
	}
	if opts.Argv[0] == "" {
		return opts, errors.New("the command's name is empty; give a command after --")
	}
	switch f.layer {
	case "ram":
		opts.RAM = true
	case "disk":
	default:
		return opts, fmt.Errorf("unknown --layer %q: use disk or ram", f.layer)
	}
	if err := f.request(&opts, changed); err != nil {
		return opts, err
	}
	if changed("layer-size") && f.layerSize < 1<<20 {
		return opts, fmt.Errorf("--layer-size %s: give at least 1M", f.layerSize.String())
	}
	for _, what := range f.require {
		if what != "limits" && what != "proc" && what != "landlock" {
			return opts, fmt.Errorf("--require %s: use limits, proc or landlock", what)
		}
	}
	opts.Terminal = f.tty
	if f.tty || piped(os.Stdin) {
		opts.Stdin = os.Stdin
	}
	if f.json {
		opts.Return = box.DefaultReturn
	} else {
		opts.Stdout, opts.Stderr = os.Stdout, os.Stderr
	}
	return opts, nil
}

// piped reports whether a file holds input: a pipe, a socket or a file, but not
// a terminal, at which a prompt would wait for ever.
func piped(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && (info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 || info.Mode().IsRegular())
}

func printJSON(v any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	_, err := os.Stdout.Write(escapeControls(text.Bytes()))
	return err
}

// escapeControls writes the controls that JSON does not forbid, U+007F to
// U+009F, as escapes of the same meaning: it may be read on a terminal.
func escapeControls(document []byte) []byte {
	var out []byte
	from := 0
	for i, c := range document {
		n := 0
		switch {
		case c == 0x7f:
			n = 1
		case c == 0xc2 && i+1 < len(document) && document[i+1] < 0xa0:
			n, c = 2, document[i+1]
		default:
			continue
		}
		out = fmt.Appendf(append(out, document[from:i]...), `\u%04x`, c)
		from = i + n
	}
	if from == 0 {
		return document
	}
	return append(out, document[from:]...)
}
