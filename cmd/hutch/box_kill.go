package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"hutch/internal/api"
)

func boxKillCommand() *cobra.Command {
	var k api.Kill
	var cmd *cobra.Command
	cmd = verb("kill BOX [EXEC]", "End what runs in a box", words{1, 2, "give a box and, for one command alone, its number"}, func(ctx context.Context, args []string) error {
		changed := cmd.Flags().Changed
		if len(args) == 2 {
			k.Exec = args[1]
		}
		switch {
		case changed("signal") && k.Signal == "":
			return invalid("--signal: it is empty; give a name such as TERM, or a number")
		case changed("pid") && k.PID <= 0:
			return invalid("--pid %d: give a process of the box; see `hutch box ps %s`", k.PID, args[0])
		case count(k.PID != 0, k.Exec != "", k.All) > 1:
			return invalid("a command, --pid and --all exclude each other; give one of them")
		}
		k.All = k.PID == 0 && k.Exec == ""
		k.Signal = strings.TrimPrefix(strings.ToUpper(k.Signal), "SIG")
		c, err := runningDaemon(ctx)
		if err != nil {
			return err
		}
		if c == nil { // nothing can run; but the box must be there
			err = withBoxes(ctx, func(boxes quiet) error { _, err := boxes.Show(ctx, args[0]); return err })
		} else {
			err = c.Kill(ctx, args[0], k)
		}
		if err == nil && wantsJSON(cmd.Flags()) {
			return printJSON(k)
		}
		return err
	})
	cmd.Long = `End what runs in a box: everything, one command with all it started, or one
process. The box itself lives on.`
	cmd.Flags().StringVarP(&k.Signal, "signal", "s", "", "send this `signal`, a name or number (default KILL)")
	cmd.Flags().BoolVar(&k.All, "all", false, "everything that runs in it (the default)")
	cmd.Flags().IntVar(&k.PID, "pid", 0, "this process alone, by the `number` that box ps gives it")
	return cmd
}
