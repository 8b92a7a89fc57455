package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/box"
	"hutch/internal/policy"
)

// withStore opens the state directory for one command.
func withStore(do func(*box.Store) error) error {
	store, err := box.OpenStore()
	if err != nil {
		return err
	}
	defer store.Close()
	return do(store)
}

// inTable is the beginning of a command line, quoted; --json has it whole.
func inTable(argv []string) string {
	const most = 60
	line := []rune(strings.Join(argv, " "))
	if len(line) > most {
		line = append(line[:most-1], '…')
	}
	return strconv.QuoteToGraphic(string(line))
}

func gcCommand() *cobra.Command {
	var age policy.Duration
	count := box.DefaultBudget.Count
	var workspace string
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Clear old boxes, old outputs, undo data and what crashes left",
		Args:  cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			if count < 0 {
				return fmt.Errorf("--keep %d: give 0 or more", count)
			}
			return withStore(func(s *box.Store) error {
				c, err := s.Collect(box.Budget{Age: time.Duration(age), Count: count}, workspace)
				fmt.Printf("removed %d kept boxes, %d left by crashes, %d outputs, %d bytes of undo data\n", c.Boxes, c.Crashed, c.Outputs, c.UndoneBytes)
				return err
			})
		},
	}
	cmd.Flags().TextVar(&age, "age", policy.Duration(box.DefaultBudget.Age), "keep what is younger than this `duration`")
	cmd.Flags().IntVar(&count, "keep", count, "keep at most this many boxes, the newest")
	cmd.Flags().StringVar(&workspace, "workspace", "", "whose undo data to prune (default: the current directory)")
	return cmd
}

func recoverCommand() *cobra.Command {
	var workspace string
	var foreign []string
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Finish or take back a promotion that was interrupted",
		Long: `Finish or take back a promotion that a crash or a power cut interrupted. It also
runs by itself before each command on that workspace.

What another state directory wrote, or what came with an archive, is not
followed: a journal is an order to move files. When you know it, --foreign names
it; all its paths lie in the workspace whatever it says.`,
		Args: cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			return withStore(func(s *box.Store) error {
				recovered, err := s.Recover(workspace, foreign...)
				for _, r := range recovered {
					how := "taken back"
					if r.Forward {
						how = "finished"
					}
					what := "promotion"
					if r.Undone {
						what = "undo of promotion"
					}
					if r.Kept {
						how += fmt.Sprintf(", but for what changed since; the rest is in .hutch/txn-%s", r.ID)
					}
					fmt.Printf("%s %s: %s\n", what, r.ID, how)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&workspace, "workspace", "", "the workspace (default: the current directory)")
	cmd.Flags().StringArrayVar(&foreign, "foreign", nil, "follow the journal of this transaction although another hutch wrote it; may be repeated")
	return cmd
}

func receiptsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "receipts",
		Short: "Read and verify the record of every run",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	list := &cobra.Command{
		Use:   "list",
		Short: "List the receipts, a JSON line each",
		Args:  cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			return withStore(func(s *box.Store) error {
				receipts, err := s.Receipts.List()
				for _, r := range receipts {
					fmt.Printf("%s\n", escapeControls(r.Raw))
				}
				return err
			})
		},
	}
	show := &cobra.Command{
		Use:   "show ID",
		Short: "Show one receipt",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return withStore(func(s *box.Store) error {
				r, err := s.Receipts.Show(args[0])
				if err != nil {
					return err
				}
				fmt.Printf("%s\n", escapeControls(r.Raw))
				return nil
			})
		},
	}
	verify := &cobra.Command{
		Use:   "verify",
		Short: "Check that no receipt was changed, dropped or inserted",
		Args:  cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			return withStore(func(s *box.Store) error {
				n, line, reason, err := s.Receipts.Verify()
				if err != nil {
					return err
				}
				if line != 0 {
					return fmt.Errorf("%s: line %d is broken: %s", s.Receipts.Path(), line, reason)
				}
				fmt.Printf("%d receipts, the chain is whole\n", n)
				return nil
			})
		},
	}
	cmd.AddCommand(list, show, verify)
	return cmd
}
