package main

import (
	"context"

	"github.com/spf13/cobra"

	"hutch/internal/api"
)

func boxShellCommand() *cobra.Command {
	var f execFlags
	var cmd *cobra.Command
	cmd = verb("shell BOX", "Open a shell in a box, on a terminal of its own", words{0, -1, ""}, func(ctx context.Context, args []string) error {
		id, argv, err := commandOf(cmd, args)
		if err != nil {
			return err
		}
		if len(argv) == 0 {
			argv = []string{"sh", "-c", "command -v bash > /dev/null && exec bash -i; exec sh -i"}
		}
		never := 0.0
		run := api.Run{Argv: argv, Dir: f.cwd, Timeout: &never}
		if run.Env, err = f.environ(); err != nil {
			return err
		}
		return attach(ctx, attachment{box: id, run: run, terminal: true, asJSON: wantsJSON(cmd.Flags())})
	})
	cmd.Long = `Open a shell in a box, on a terminal of its own, which has the size of yours and
follows it. It is bash where there is one, else sh, or the command after --.`
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set NAME=VALUE, or pass NAME on; may be repeated")
	flags.StringVar(&f.cwd, "cwd", "", "directory in the box (default: the workspace)")
	return cmd
}
