package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/box"
)

func logCommand() *cobra.Command {
	var workspace string
	var asJSON bool
	count := 0
	cmd := &cobra.Command{
		Use:   "log",
		Short: "List the promotions into the workspace, newest first",
		Long: `List the promotions into the workspace, newest first, and which of them can be
undone. Those of which no undo data is left are known from the receipts.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("workspace") && workspace == "" {
				return errors.New("--workspace: the name is empty; give a directory")
			}
			if cmd.Flags().Changed("number") && count < 1 {
				return fmt.Errorf("-n %d: give 1 or more", count)
			}
			return withStore(func(s *box.Store) error {
				list, err := s.Log(workspace)
				if err != nil {
					return err
				}
				if count > 0 {
					list = list[:min(len(list), count)]
				}
				if asJSON {
					return printJSON(list)
				}
				return printLog(list)
			})
		},
	}
	cmd.Flags().StringVar(&workspace, "workspace", "", "the workspace (default: the current directory)")
	cmd.Flags().IntVarP(&count, "number", "n", 0, "list at most this many (default: all)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func printLog(list []box.Logged) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "RECEIPT\tTIME\tSTATE\tCREATED\tMODIFIED\tDELETED\tUNDO\tCOMMAND")
	for _, p := range list {
		undo := p.NoUndo
		if p.CanUndo {
			undo = fmt.Sprintf("yes, %d bytes kept", p.Bytes)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", p.ID, p.Time.Local().Format(time.DateTime), p.State, p.Created, p.Modified, p.Deleted, oneLine(undo), inTable(p.Argv))
	}
	return table.Flush()
}
