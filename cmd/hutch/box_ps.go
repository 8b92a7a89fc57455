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

func boxProcessesCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("ps BOX", "List what runs in a box", oneBoxWord, func(ctx context.Context, args []string) error {
		c, err := liveDaemon(ctx)
		if err != nil {
			return err
		}
		list, err := c.Processes(ctx, args[0])
		if err != nil {
			return err
		}
		if wantsJSON(cmd.Flags()) {
			return printJSON(append([]api.Process{}, list...))
		}
		table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "PID\tEXEC\tSTATE\tMEMORY\tCPU\tCOMMAND")
		for _, p := range list {
			line := p.Argv
			if len(line) == 0 {
				line = []string{p.Name}
			}
			fmt.Fprintf(table, "%d\t%s\t%s\t%.1fM\t%v\t%s\n", p.PID, orDash(p.Exec), oneLine(p.State), float64(p.RSS)/(1<<20), time.Duration(p.CPUMS*1e6).Round(time.Millisecond), inTable(line))
		}
		return table.Flush()
	})
	return cmd
}
