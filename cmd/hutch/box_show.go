package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/api"
)

func boxShowCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("show BOX", "Tell what is known of a box", oneBoxWord, func(ctx context.Context, args []string) error {
		return withBoxes(ctx, func(boxes quiet) error {
			b, err := boxes.Show(ctx, args[0])
			if err != nil {
				return err
			}
			if wantsJSON(cmd.Flags()) {
				return printJSON(b)
			}
			return showBox(b)
		})
	})
	return cmd
}

func showBox(b *api.Box) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, oneLine(fmt.Sprintf(format, args...)))
	}
	row("id", "%s", b.ID)
	row("name", "%s", orDash(b.Name))
	row("state", "%s", b.State)
	if b.Reason != "" {
		row("why", "%s", b.Reason)
	}
	row("live", "%v", b.Live)
	row("created", "%s", b.Created.Local().Format(time.DateTime))
	if b.Ended != nil {
		row("ended", "%s", b.Ended.Local().Format(time.DateTime))
	}
	row("workspace", "%q", b.Workspace)
	if b.Parent != "" {
		row("forked from", "%s", b.Parent)
	}
	row("strategy", "%s", b.Strategy)
	row("layers", "%d", b.Layers)
	for _, c := range b.Checkpoints {
		row("checkpoint", "%s of %s", c.Name, c.Created.Local().Format(time.DateTime))
	}
	row("commands", "%d", b.Execs)
	for _, e := range b.Running {
		row("running", "%s: %s", e.ID, inTable(e.Argv))
	}
	if len(b.Argv) > 0 {
		row("last command", "%s: %s, exit code %d", inTable(b.Argv), orDash(b.Status), b.ExitCode)
	}
	return table.Flush()
}
