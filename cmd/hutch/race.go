package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hutch/internal/api"
	"hutch/internal/box"
	"hutch/internal/outcome"
)

// raceFlags are the flags of hutch race.
type raceFlags struct {
	count  int
	lines  []string // command lines, one a racer or one for all
	score  string
	keep   bool
	create api.Create
	ofNew  pflag.FlagSet // flags that say what new boxes are like
	promotionFlags
	policyFlags
}

func raceCommand() *cobra.Command {
	f := raceFlags{promotionFlags: newPromotionFlags()}
	var cmd *cobra.Command
	cmd = verb("race [BOX...] [-n N] [flags] [-- COMMAND [ARG...]]", "Run a command in several boxes at once; the first success is committed", words{0, -1, ""}, func(ctx context.Context, args []string) error {
		q, err := f.request(cmd, args)
		if err != nil {
			return err
		}
		c, err := liveDaemon(ctx)
		if err != nil {
			return err
		}
		r, err := c.Race(ctx, *q)
		if err != nil {
			return err
		}
		return tellRace(wantsJSON(cmd.Flags()), r)
	})
	cmd.Long = `Run a command in several boxes side by side. The first that succeeds wins, and ends
the others; with --score the one wins whose score, the last line that CMD prints,
is highest. The winner is committed, the others are discarded.

BOXes race themselves; one BOX with -n races in N forks of it; none, in N new boxes
of the workspace. The command sees HUTCH_RACER, the number of its racer, from 1.
Several --cmd are different commands: each racer runs one, and -n is their number.`
	cmd.Example = `  hutch race -n 4 -- sh -c './agent --seed $HUTCH_RACER'
  hutch race fix-1 --cmd './agent --model a' --cmd './agent --model b'
  hutch race fix-1 fix-2 --score 'pytest -q | grep -c passed' -- make test`
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVarP(&f.count, "count", "n", 0, "how many racers")
	flags.StringArrayVar(&f.lines, "cmd", nil, "a command `line` for sh, in place of COMMAND; of several each racer runs one")
	flags.StringVar(&f.score, "score", "", "a `command` line for sh, run in the box of each that succeeded")
	flags.BoolVar(&f.keep, "keep", false, "commit nothing and keep all boxes")
	f.promotionFlags.add(flags)
	addCreate(&f.ofNew, &f.create)
	f.policyFlags.add(&f.ofNew)
	flags.AddFlagSet(&f.ofNew)
	return cmd
}

func (f *raceFlags) request(cmd *cobra.Command, args []string) (*api.Race, error) {
	boxes, commands, err := f.commands(cmd.ArgsLenAtDash(), args)
	if err != nil {
		return nil, err
	}
	changed := cmd.Flags().Changed
	if changed("count") && (f.count < 1 || f.count > 256) {
		return nil, invalid("-n %d: give 1 to 256", f.count)
	}
	count := f.count
	if count == 0 && len(commands) > 1 && len(boxes) < 2 {
		count = len(commands)
	}
	racers := max(count, len(boxes))
	if len(commands) > 1 && len(commands) != racers {
		return nil, invalid("%d commands for %d racers: give as many, or one for all", len(commands), racers)
	}
	q := &api.Race{Keep: f.keep, Count: count}
	switch {
	case len(boxes) > 1 && count > 0, racers == 0:
		return nil, invalid("give boxes to race in, or -n and at most one box to fork")
	case len(boxes) == 1 && count > 0:
		q.Box = boxes[0]
	case len(boxes) > 0:
		q.Boxes = boxes
	default:
		if err := fillCreate(&f.create, &f.policyFlags, changed); err != nil {
			return nil, err
		}
		q.Create = &f.create
	}
	if q.Create == nil {
		if err := f.nothingNew(); err != nil {
			return nil, err
		}
	}
	for i := range racers {
		q.Runs = append(q.Runs, api.Run{Argv: commands[i%len(commands)], Env: []string{fmt.Sprintf("HUTCH_RACER=%d", i+1)}})
	}
	if f.score != "" {
		q.Score = &api.Run{Argv: []string{"sh", "-c", f.score}}
	}
	promotion, err := f.promotion()
	if err != nil {
		return nil, invalid("%v", err)
	}
	q.Commit = commitRequest(promotion)
	return q, nil
}

// commands are what is to be run, one for all racers or one for each, and the
// boxes that are named before it.
func (f *raceFlags) commands(dash int, args []string) (boxes []string, commands [][]string, err error) {
	boxes = args
	if dash >= 0 {
		boxes = args[:dash]
	}
	given := len(boxes) < len(args)
	switch {
	case given && len(f.lines) > 0:
		return nil, nil, invalid("--cmd and a command after -- exclude each other")
	case given:
		return boxes, [][]string{args[dash:]}, nil
	case len(f.lines) == 0:
		return nil, nil, invalid("no command: give one after --, or --cmd")
	}
	for _, line := range f.lines {
		commands = append(commands, []string{"sh", "-c", line})
	}
	return boxes, commands, nil
}

// nothingNew refuses flags that would say nothing to boxes that are there.
func (f *raceFlags) nothingNew() (err error) {
	f.ofNew.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && err == nil {
			err = invalid("--%s is for new boxes; these have their own policy since they were made", flag.Name)
		}
	})
	return err
}

func tellRace(asJSON bool, r *api.RaceResult) error {
	var end error
	if r.Winner == "" || r.Error != "" {
		end = failed
	}
	if asJSON {
		if err := printJSON(r); err != nil {
			return err
		}
		return end
	}
	table := tabwriter.NewWriter(os.Stderr, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "BOX\tSTATUS\tSCORE\tFATE")
	for _, racer := range r.Racers {
		status, score := "-", "-"
		if racer.Outcome != nil {
			status = fmt.Sprintf("%s (%d)", racer.Outcome.Status, racer.Outcome.ExitCode)
		}
		if racer.Error != "" {
			status = oneLine(racer.Error)
		}
		if racer.Score != nil {
			score = fmt.Sprint(*racer.Score)
		}
		fate := racer.Fate
		if racer.Won {
			fate += ", won"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", racer.Box, status, score, fate)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Delivery) > 0 {
		var d box.Delivery
		if err := decode(r.Delivery, &d); err != nil {
			return err
		}
		if d.Promoted != nil {
			sayPromoted(r.Winner, d.Promoted, sayError(&d))
		}
	}
	switch {
	case r.Winner == "":
		say("no racer succeeded; nothing was committed")
	case r.Error != "":
		say("box %s won, but was not committed: %s", r.Winner, r.Error)
	default:
		fmt.Println(r.Winner)
	}
	return end
}

// sayError is the error that a report of a commit tells of.
func sayError(d *box.Delivery) error {
	if d.Status == outcome.Success || d.Error == "" {
		return nil
	}
	return failed
}
