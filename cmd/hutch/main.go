// Command hutch runs commands on a copy-on-write branch of a workspace and
// promotes what they changed whole or not at all.
//
// It lives for milliseconds: it does not look up which processors its cgroup
// may use, nor watch whether that changes.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hutch/internal/fsat"
	"hutch/internal/outcome"
)

// version is set by the linker.
var version = "0.1.0-dev"

// exit ends the process with a code and no message of its own: what had to be
// said was said.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit %d", int(e)) }

func main() {
	fsat.Searcher()
	keepOwnerBits()
	args := joinBooleans(os.Args[1:])
	if len(args) > 0 && args[0] == "run" {
		// The command that must start fast is built alone.
		run := runCommand()
		run.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "hutch run"}
		os.Exit(execute(run, args[1:]))
	}
	root := &cobra.Command{
		Use:     "hutch",
		Short:   "Run commands on a copy-on-write branch of a workspace, in a kernel jail",
		Version: version,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(runCommand(), diffCommand(), commitCommand(), discardCommand(), boxCommand(), raceCommand(), daemonCommand(), undoCommand(), logCommand(), gcCommand(), recoverCommand(), receiptsCommand(), policyCommand(), trustCommand())
	os.Exit(execute(root, args))
}

// execute runs a command and returns the exit code of the process.
func execute(cmd *cobra.Command, args []string) int {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		err = fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())
		switch {
		case !asksForJSON(args):
		case cmd.Name() == "run":
			printJSON(notRun(err))
		case cmd.Flags().Lookup("json") != nil:
			tellJSON(invalid("%v", err))
		}
		return err
	})
	cmd.SetArgs(args)
	return code(cmd.Execute())
}

// asksForJSON tells what a command line wants that could not be parsed.
func asksForJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

func code(err error) int {
	var status exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	fmt.Fprintln(os.Stderr, "hutch: "+oneLine(err.Error()))
	return outcome.ExitHutch
}

// oneLine keeps a message on its line and away from the terminal's controls,
// whatever names it quotes: a box chose them.
func oneLine(s string) string {
	return visible(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

// joinBooleans makes "--allow-net false" mean "--allow-net=false": users of
// other tools write the value as a word of its own.
func joinBooleans(args []string) []string {
	joined := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(joined, args[i:]...)
		}
		if args[i] == "--allow-net" && i+1 < len(args) && slices.Contains([]string{"true", "false"}, args[i+1]) {
			joined = append(joined, args[i]+"="+args[i+1])
			i++
			continue
		}
		joined = append(joined, args[i])
	}
	return joined
}
