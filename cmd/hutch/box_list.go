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

func boxListCommand() *cobra.Command {
	var all bool
	var cmd *cobra.Command
	cmd = verb("list", "List boxes, live and kept ones", noWords, func(ctx context.Context, _ []string) error {
		return withBoxes(ctx, func(boxes quiet) error {
			list, err := boxes.List(ctx, all)
			if err != nil {
				return err
			}
			if wantsJSON(cmd.Flags()) {
				return printJSON(append([]api.Box{}, list...))
			}
			return listBoxes(list)
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "those that have ended, too")
	return cmd
}

func listBoxes(list []api.Box) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "BOX\tNAME\tSTATE\tWHY\tAGE\tSTATUS\tWORKSPACE\tCOMMAND")
	for i := range list {
		b := &list[i]
		state := string(b.State)
		if b.Live {
			state += ", live"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%q\t%s\n", b.ID, orDash(b.Name), state, orDash(b.Reason), time.Since(b.Created).Round(time.Second), orDash(b.Status), b.Workspace, boxLine(b))
	}
	return table.Flush()
}
