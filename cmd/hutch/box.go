package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

func boxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "box",
		Short: "Work with boxes that last",
		Long: `Work with boxes that last. A BOX is an id, an unambiguous beginning of one, or a
name. What needs a box to live (exec, shell, ps, kill, files, ports) starts the
daemon hutchd where none runs; all else works without.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		boxCreateCommand(), boxListCommand(), boxShowCommand(), boxRemoveCommand(),
		boxExecCommand(), boxShellCommand(), boxLogsCommand(), boxProcessesCommand(), boxKillCommand(),
		boxCopyCommand(), boxCatCommand(), boxWriteCommand(), boxLsCommand(),
		boxCheckpointCommand(), boxRestoreCommand(), boxForkCommand(),
		boxPortsCommand(), boxForwardCommand(), boxReleaseCommand(),
	)
	return cmd
}

// words is how many arguments a verb takes, and what it says when it has others.
type words struct {
	least, most int // most -1: any number
	usage       string
}

// verb makes a command of what it does. With --json its errors are an object on
// standard output too.
func verb(use, short string, w words, do func(ctx context.Context, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := w.check(args)
		if err == nil {
			err = do(context.Background(), args)
		}
		if err != nil && *asJSON {
			tellJSON(err)
		}
		return err
	}
	return cmd
}

func (w words) check(args []string) error {
	if len(args) < w.least || w.most >= 0 && len(args) > w.most {
		return invalid("%s", w.usage)
	}
	for _, arg := range args[:w.least] {
		if arg == "" {
			return invalid("an argument is empty; %s", w.usage)
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return &api.Error{Code: api.Invalid, Text: fmt.Sprintf(format, args...)}
}

// wantsJSON tells what the --json of a verb is.
func wantsJSON(flags *pflag.FlagSet) bool {
	asked, err := flags.GetBool("json")
	return err == nil && asked
}

// failure is an error for programs.
type failure struct {
	Error string   `json:"error"`
	Code  api.Code `json:"code"`
}

// tellJSON prints an error for programs, unless all was said.
func tellJSON(err error) {
	var said exit
	if errors.As(err, &said) {
		return
	}
	f := failure{Error: err.Error(), Code: api.Internal}
	var known *api.Error
	if errors.As(err, &known) {
		f.Code = known.Code
	}
	_ = printJSON(f) // the error itself is returned, and told on standard error
}

// say writes one line to standard error.
func say(format string, args ...any) {
	fmt.Fprintln(os.Stderr, "hutch: "+oneLine(fmt.Sprintf(format, args...)))
}

// oneBoxWord is for verbs that take one box and nothing else.
var oneBoxWord = words{1, 1, "give one box: its id, the beginning of that, or its name; see `hutch box list`"}

// boxLine is what a table shows of a box's command.
func boxLine(b *api.Box) string {
	if len(b.Argv) == 0 {
		return "-"
	}
	return inTable(b.Argv)
}

// orDash is what a table shows where there is nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// decode reads the JSON of a part of an answer.
func decode[T any](text json.RawMessage, into *T) error {
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("hutchd's answer makes no sense: %w", err)
	}
	return nil
}

// failed is the exit code of hutch's own errors, where all was said.
const failed = exit(outcome.ExitHutch)

// cutBox parts BOX:PATH; ok is false for what names no box. A path of the host
// that has a colon is written with a slash before it, as for scp.
func cutBox(arg string) (box, path string, ok bool) {
	box, path, ok = strings.Cut(arg, ":")
	if !ok || box == "" || strings.Contains(box, "/") {
		return "", arg, false
	}
	return box, path, true
}
