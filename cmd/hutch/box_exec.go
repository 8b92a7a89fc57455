package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/api"
	"hutch/internal/box"
	"hutch/internal/policy"
)

// execFlags are the flags of hutch box exec.
type execFlags struct {
	detach, tty bool
	timeout     policy.Duration
	env         []string
	cwd         string
}

func boxExecCommand() *cobra.Command {
	var f execFlags
	var cmd *cobra.Command
	cmd = verb("exec BOX [flags] -- COMMAND [ARG...]", "Run a command in a box", words{0, -1, ""}, func(ctx context.Context, args []string) error {
		return f.run(ctx, cmd, args)
	})
	cmd.Long = `Run a command in a box, beside whatever else runs there. Input is passed when it is
piped. The exit code is that of ` + "`hutch run`" + `: the command's own, or 124, 125, 126, 127, 128+n
or 137. Nothing reaches the workspace before ` + "`hutch commit`" + `.`
	cmd.Example = `  hutch box exec fix-123 -- pytest -x
  hutch box exec fix-123 --detach -- ./server
  cat patch | hutch box exec fix-123 -- git apply`
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.detach, "detach", false, "print its id and leave it running")
	flags.BoolVar(&f.tty, "tty", false, "give the command a terminal of its own")
	flags.TextVar(&f.timeout, "timeout", policy.Duration(0), "end it after this `duration`; 0 for never (without it: the box's policy)")
	flags.Lookup("timeout").DefValue = "" // which it has not
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set NAME=VALUE, or pass NAME on; may be repeated")
	flags.StringVar(&f.cwd, "cwd", "", "directory in the box (default: the workspace)")
	return cmd
}

// commandOf parts BOX from the command: `exec BOX -- CMD` and, as some type it,
// `exec BOX CMD`.
func commandOf(cmd *cobra.Command, args []string) (id string, argv []string, err error) {
	if len(args) == 0 || args[0] == "" {
		return "", nil, invalid("give a box and, after --, a command; see `hutch box list`")
	}
	if dash := cmd.ArgsLenAtDash(); dash >= 0 && dash != 1 {
		return "", nil, invalid("give one box before --, and the command after it")
	}
	return args[0], args[1:], nil
}

func (f *execFlags) run(ctx context.Context, cmd *cobra.Command, args []string) error {
	id, argv, err := commandOf(cmd, args)
	if err != nil {
		return err
	}
	if len(argv) == 0 || argv[0] == "" {
		return invalid("no command: give one after --")
	}
	asJSON := wantsJSON(cmd.Flags())
	run := api.Run{Argv: argv, Dir: f.cwd}
	if cmd.Flags().Changed("timeout") {
		seconds := time.Duration(f.timeout).Seconds()
		run.Timeout = &seconds
	}
	if run.Env, err = f.environ(); err != nil {
		return err
	}
	if f.detach {
		if f.tty {
			return invalid("--detach and --tty exclude each other: nobody would be at the terminal")
		}
		return f.leave(ctx, asJSON, id, run)
	}
	if asJSON {
		run.Return = box.DefaultReturn
	}
	return attach(ctx, attachment{box: id, run: run, terminal: f.tty, asJSON: asJSON})
}

// environ is what the flags set in the command's environment.
func (f *execFlags) environ() ([]string, error) {
	var list []string
	for _, e := range f.env {
		name, _, set := strings.Cut(e, "=")
		if name == "" {
			return nil, invalid("--env %q: give NAME=VALUE or NAME", e)
		}
		if !set {
			value, ok := os.LookupEnv(name)
			if !ok {
				continue
			}
			e = name + "=" + value
		}
		list = append(list, e)
	}
	return list, nil
}

// mostInput bounds the input of a command that nobody stays with, in bytes: it
// travels in the request, in base64, and hutchd takes 1 MiB of that.
const mostInput = 700 << 10

// leave starts a command and does not wait for it.
func (f *execFlags) leave(ctx context.Context, asJSON bool, id string, run api.Run) error {
	if piped(os.Stdin) {
		input, err := io.ReadAll(io.LimitReader(os.Stdin, mostInput+1))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		if len(input) > mostInput {
			return invalid("standard input is longer than %d KiB, which --detach cannot pass; write it to a file of the box with `hutch box write`", mostInput>>10)
		}
		run.StdinBase64 = input
	}
	c, err := liveDaemon(ctx)
	if err != nil {
		return err
	}
	e, err := c.Detach(ctx, id, run)
	if err != nil {
		return err
	}
	return tellNew(asJSON, e, e.ID)
}
