package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"hutch/internal/api"
)

func boxPortsCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("ports BOX", "List what listens in a box", oneBoxWord, func(ctx context.Context, args []string) error {
		c, err := liveDaemon(ctx)
		if err != nil {
			return err
		}
		list, err := c.Ports(ctx, args[0])
		if err != nil {
			return err
		}
		if wantsJSON(cmd.Flags()) {
			return printJSON(append([]api.Port{}, list...))
		}
		table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "PORT\tADDRESS\tPROTOCOL")
		for _, p := range list {
			fmt.Fprintf(table, "%d\t%s\t%s\n", p.Port, oneLine(p.Address), oneLine(p.Proto))
		}
		return table.Flush()
	})
	return cmd
}
