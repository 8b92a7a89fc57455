package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hutch/internal/api"
	"hutch/internal/box"
	"hutch/internal/client"
	"hutch/internal/guard"
	"hutch/internal/outcome"
	"hutch/internal/promote"
)

// promotionFlags are shared by the commands that promote.
type promotionFlags struct {
	git, mtime, onConflict choice
	box.Promotion
}

func newPromotionFlags() promotionFlags {
	return promotionFlags{
		git:        choice{value: "exclude", of: []string{"exclude", "include"}},
		mtime:      choice{value: "commit", of: []string{"commit", "keep"}},
		onConflict: choice{value: "fail", of: []string{"fail", "ours", "theirs", "merge"}},
	}
}

func (f *promotionFlags) add(flags *pflag.FlagSet) {
	flags.Var(&f.git, "git", "exclude or include .git in the change")
	flags.Var(&f.mtime, "mtime", "times of promoted files: commit (order kept, ending now) or keep")
	flags.StringArrayVar(&f.Only, "only", nil, "promote only what matches this glob (gitignore syntax); may be repeated")
	flags.StringArrayVar(&f.Except, "except", nil, "leave what matches this glob in the box; may be repeated")
	flags.BoolVar(&f.Hold, "hold", false, "leave what the handoff guard holds in the box, promote the rest")
	flags.StringArrayVar(&f.Allow, "allow-path", nil, "let the handoff guard pass what matches this glob; may be repeated")
	flags.StringArrayVar(&f.Protect, "protect", nil, "let the handoff guard hold what matches this glob; may be repeated")
	flags.Var(&f.onConflict, "on-conflict", "where the workspace changed too: fail, ours (its side stays), theirs (the box's is taken) or merge")
	flags.BoolVar(&f.Markers, "conflict-markers", false, "with --on-conflict merge: write conflict markers where both changed the same lines")
}

func (f *promotionFlags) promotion() (box.Promotion, error) {
	p := f.Promotion
	p.Git, p.KeepTimes = f.git.value == "include", f.mtime.value == "keep"
	if f.onConflict.value != "fail" {
		p.OnConflict = promote.Mode(f.onConflict.value)
	}
	if p.Markers && p.OnConflict != promote.Merge {
		return p, errors.New("--conflict-markers needs --on-conflict merge")
	}
	for flag, list := range map[string][]string{"--only": p.Only, "--except": p.Except, "--allow-path": p.Allow, "--protect": p.Protect} {
		for _, glob := range list {
			if strings.TrimSpace(glob) == "" {
				return p, fmt.Errorf("%s: the glob is empty; give one such as 'src/**'", flag)
			}
		}
	}
	return p, nil
}

func commitCommand() *cobra.Command {
	f := newPromotionFlags()
	var asJSON, patch, keep bool
	cmd := &cobra.Command{
		Use:   "commit BOX",
		Short: "Promote what a box changed, whole or not at all",
		Long: `Promote what a box changed. The selected set arrives whole or not at all; what is
not selected, or is held by the handoff guard, stays in the box. With --keep the
box lives on, and what it changes from now on can be promoted in its turn.`,
		Example: `  hutch commit 3f9c
  hutch commit 3f9c --only 'src/**' --except '*.lock'
  hutch commit 3f9c -p
  hutch commit 3f9c --allow-path .vscode/tasks.json
  hutch commit 3f9c --on-conflict merge`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := oneBoxWord.check(args); err != nil {
				return err
			}
			promotion, err := f.promotion()
			if err != nil {
				return err
			}
			if patch {
				out := os.Stdout
				if asJSON {
					out = os.Stderr
				}
				promotion.Pick = newPicker(out).pick
			}
			d, err := deliver(context.Background(), args[0], promotion, keep)
			if asJSON {
				return commitJSON(d, err)
			}
			return tellDelivery(args[0], d, err, f.onConflict.value)
		},
	}
	cmd.Flags().SortFlags = false
	f.add(cmd.Flags())
	cmd.Flags().BoolVarP(&patch, "patch", "p", false, "choose by file and hunk, as git add -p does")
	cmd.Flags().BoolVar(&keep, "keep", false, "the box lives on")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was promoted, held or in conflict, as JSON")
	return cmd
}

// deliver commits a box where it lives. To pick takes the caller's terminal, so
// a box is let go of for that, and what runs in it ends.
func deliver(ctx context.Context, id string, p box.Promotion, keep bool) (*box.Delivery, error) {
	c, err := holder(ctx, id)
	if err != nil {
		return nil, err
	}
	if c != nil && p.Pick == nil {
		q := commitRequest(p)
		q.Keep = keep
		return deliverThere(ctx, c, id, q)
	}
	if c != nil {
		if err := c.Release(ctx, id); err != nil {
			return nil, err
		}
	}
	var done *box.Promoted
	err = withLocal(ctx, func(boxes *box.Boxes) (err error) {
		done, err = boxes.Promote(ctx, id, p, keep)
		return err
	})
	return box.Delivered(done, err), err
}

// deliverThere has the daemon commit a box.
func deliverThere(ctx context.Context, c *client.Client, id string, q api.Commit) (*box.Delivery, error) {
	d := box.Delivered(nil, nil)
	err := c.Commit(ctx, id, q, d)
	var not *client.Undelivered
	if errors.As(err, &not) {
		d = box.Delivered(nil, nil)
		return d, errors.Join(err, decode(not.Report, d))
	}
	if err != nil {
		return box.Delivered(nil, err), err
	}
	return d, nil
}

// commitRequest is a promotion as the daemon is asked for it.
func commitRequest(p box.Promotion) api.Commit {
	return api.Commit{
		Git: p.Git, KeepTimes: p.KeepTimes, Only: p.Only, Except: p.Except, Allow: p.Allow, Protect: p.Protect, Hold: p.Hold,
		OnConflict: string(p.OnConflict), Markers: p.Markers,
	}
}

// tellDelivery explains what came of a commit.
func tellDelivery(id string, d *box.Delivery, err error, mode string) error {
	if d == nil {
		return err
	}
	sayPromoted(id, d.Promoted, err)
	switch d.Status {
	case outcome.Held:
		return failed
	case outcome.Conflict:
		for _, line := range explainConflicts(id, d.Conflicts, mode) {
			fmt.Fprintln(os.Stderr, "hutch: "+line)
		}
		return failed
	}
	return err
}

// sayPromoted explains on standard error what a promotion did beside
// succeeding.
func sayPromoted(boxID string, done *box.Promoted, err error) {
	for _, line := range explainGuard(boxID, done.Held, done.Flagged, err == nil) {
		fmt.Fprintln(os.Stderr, "hutch: "+line)
	}
	for _, line := range explainSettled(done.Resolved) {
		fmt.Fprintln(os.Stderr, "hutch: "+line)
	}
	for _, note := range done.Notes {
		fmt.Fprintln(os.Stderr, "hutch: note: "+oneLine(note))
	}
	if err == nil && done.Kept && done.Left == 0 {
		fmt.Fprintf(os.Stderr, "hutch: box %s is kept, with nothing left to promote\n", boxID)
	} else if err == nil && done.Kept {
		fmt.Fprintf(os.Stderr, "hutch: %s in box %s: hutch diff %s, hutch commit %s, hutch discard %s\n", staying(done.Left), boxID, boxID, boxID, boxID)
	}
}

// explainGuard says in one line each what was held or flagged; what runs by
// itself comes first.
func explainGuard(boxID string, held, flagged []guard.Finding, promoted bool) []string {
	var lines []string
	for _, f := range held {
		lines = append(lines, oneLine(fmt.Sprintf("held: %s; to allow it once: hutch commit %s --allow-path %s", f.Line(), boxID, shellQuote(allowPattern(f)))))
	}
	if len(held) > 0 && !promoted {
		if len(held) > 1 {
			var all strings.Builder
			for _, f := range held {
				all.WriteString(" --allow-path " + shellQuote(allowPattern(f)))
			}
			lines = append(lines, oneLine(fmt.Sprintf("to allow all of these once: hutch commit %s%s", boxID, all.String())))
		}
		lines = append(lines, fmt.Sprintf("nothing was promoted; to promote the rest: hutch commit %s --hold", boxID))
	}
	const most = 20
	for _, f := range flagged[:min(len(flagged), most)] {
		lines = append(lines, oneLine("note: "+f.Line()))
	}
	if more := len(flagged) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("note: %d more flagged paths; --json lists them all", more))
	}
	return lines
}

// explainConflicts says in one line each what happened on both sides.
func explainConflicts(boxID string, conflicts []promote.Conflict, mode string) []string {
	var lines []string
	for _, c := range conflicts {
		why := ""
		if c.Why != "" {
			why = "; " + c.Why
		}
		lines = append(lines, oneLine(fmt.Sprintf("conflict: %q: the box %s it, the host %s%s", c.Path, c.Box, c.Host, why)))
	}
	if mode != "" && mode != "fail" {
		return append(lines, fmt.Sprintf("nothing was promoted: this is not settled by %s; hutch diff %s shows the box's side", mode, boxID))
	}
	return append(lines, fmt.Sprintf("nothing was promoted; to settle it by merge, ours or theirs: hutch commit %s --on-conflict merge", boxID))
}

// explainSettled says in one line each how conflicts were settled.
func explainSettled(resolved []promote.Resolution) []string {
	said := map[promote.How]string{
		promote.TookOurs:    "the workspace's side stayed",
		promote.TookTheirs:  "the box's side was taken; hutch undo brings the other back",
		promote.TookMerge:   "merged",
		promote.TookMarkers: "merged, with conflict markers in it",
	}
	var lines []string
	for _, r := range resolved {
		lines = append(lines, fmt.Sprintf("both changed %q: %s", r.Path, said[r.How]))
	}
	return lines
}

// allowPattern is the pattern that allows what was found at a path, and nothing
// else: neither what lies beneath a directory, nor a name like it.
func allowPattern(f guard.Finding) string {
	if f.Directory || guard.Printable(f.Path) != f.Path {
		return strconv.QuoteToASCII("/" + f.Path)
	}
	return escapeGlob(f.Path)
}

// escapeGlob writes a path as a glob that matches it alone.
func escapeGlob(path string) string {
	var b strings.Builder
	b.WriteByte('/')
	for i := range len(path) {
		if strings.IndexByte(`*?[]\`, path[i]) >= 0 || path[i] == ' ' && i == len(path)-1 {
			b.WriteByte('\\')
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

// shellQuote writes a word as a POSIX shell reads it back.
func shellQuote(word string) string {
	plain := word != ""
	for i := range len(word) {
		c := word[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("/._-+,@%=:", c) < 0 {
			plain = false
		}
	}
	if plain {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func commitJSON(d *box.Delivery, err error) error {
	if d == nil {
		d = box.Delivered(nil, err)
	}
	if err == nil && d.Status == outcome.Held {
		err = failed
	}
	return errors.Join(err, printJSON(d))
}

// staying says how many changes a promotion left behind.
func staying(n int) string {
	if n == 1 {
		return "1 change stays"
	}
	return fmt.Sprintf("%d changes stay", n)
}
