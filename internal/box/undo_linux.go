package box

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"hutch/internal/outcome"
	"hutch/internal/promote"
	"hutch/internal/receipt"
	"hutch/internal/workspace"
)

// undoFields is what the receipt of an undo says beside the chain.
type undoFields struct {
	Workspace string         `json:"workspace"`
	Status    outcome.Status `json:"status"`
	Undid     string         `json:"undid"` // the receipt of the promotion
	promote.Tally
}

func undoReceiptID(id string) string { return id + "-undo" }

// Undo takes a promotion into a workspace back. A *promote.ChangedError says
// that nothing was done, and why.
func (s *Store) Undo(ctx context.Context, opts UndoOptions) (*Undone, error) {
	ws, err := workspace.Open(cmp.Or(opts.Workspace, "."), true)
	if err != nil {
		return nil, err
	}
	defer ws.Close()
	if err := s.recover(ws.FD); err != nil {
		return nil, err
	}
	id, err := s.promotionID(opts.Receipt)
	if err == nil && id == "" {
		err = s.lastCanBeUndone(ws)
	}
	if err != nil {
		return nil, err
	}
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	res, err := promote.Undo(ctx, promote.UndoRequest{
		Workspace: ws.FD, ID: id, Key: key,
		Receipt: func(r promote.UndoResult) ([]byte, error) {
			return json.Marshal(undoFields{Workspace: ws.Path, Status: outcome.Success, Undid: r.ID, Tally: r.Tally})
		},
		Recovered: s.recordRecovered,
		Record: func(r promote.UndoResult) error {
			_, err := s.Receipts.Append(undoReceiptID(r.ID), json.RawMessage(r.Receipt), true)
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	return &Undone{ID: res.ID, Receipt: undoReceiptID(res.ID), Tally: res.Tally}, nil
}

// lastCanBeUndone refuses to go back past the last promotion to an earlier one
// because the undo data of the last is gone: that would be another undo than the
// one that was asked for.
func (s *Store) lastCanBeUndone(ws *workspace.Workspace) error {
	all, err := s.log(ws)
	if err != nil {
		return err
	}
	for _, p := range all {
		switch p.State {
		case promote.Undone:
			continue
		case Pruned:
			return fmt.Errorf("the last promotion, %s, cannot be undone: its undo data is gone, or was over the budget; name an earlier one (hutch log) to undo that", p.ID)
		}
		return nil
	}
	return nil
}

// promotionID finds the promotion that a receipt, or the beginning of its id,
// stands for.
func (s *Store) promotionID(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	r, err := s.Receipts.Show(name)
	if errors.Is(err, receipt.ErrNotFound) {
		return name, nil // the log may be younger than the promotion
	}
	if err != nil {
		return "", err
	}
	var f struct {
		receiptFields
		Undid string `json:"undid"`
	}
	if err := json.Unmarshal(r.Raw, &f); err != nil {
		return "", fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	switch {
	case f.Undid != "":
		return "", fmt.Errorf("receipt %s is of an undo, which cannot be undone itself; run the command again", r.ID)
	case !f.Committed:
		return "", fmt.Errorf("receipt %s is of a run that promoted nothing; see `hutch log`", r.ID)
	}
	return r.ID, nil
}

// Log lists the promotions into a workspace, newest first: those that it holds
// undo data of, and, from the receipts, those it holds none of any more.
func (s *Store) Log(path string) ([]Logged, error) {
	ws, err := workspace.Open(cmp.Or(path, "."), true)
	if err != nil {
		return nil, err
	}
	defer ws.Close()
	if err := s.recover(ws.FD); err != nil {
		return nil, err
	}
	return s.log(ws)
}

func (s *Store) log(ws *workspace.Workspace) ([]Logged, error) {
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	held, err := promote.Log(ws.FD, key)
	if err != nil {
		return nil, err
	}
	list, known := []Logged{}, map[string]bool{}
	for _, h := range held {
		p := Logged{
			ID: h.ID, Time: h.Time, State: h.State, Created: h.Created, Modified: h.Modified, Deleted: h.Deleted,
			Bytes: h.Bytes, CanUndo: h.NoUndo == "", NoUndo: h.NoUndo, Receipt: h.Receipt, Argv: []string{},
		}
		var f receiptFields
		if json.Unmarshal(h.Receipt, &f) == nil && f.Argv != nil {
			p.Argv = f.Argv
		}
		list, known[h.ID] = append(list, p), true
	}
	older, err := s.pruned(ws.Path, known)
	list = append(list, older...)
	slices.SortStableFunc(list, func(a, b Logged) int { return b.Time.Compare(a.Time) })
	return list, err
}

// pruned lists, newest first, what the receipts know of promotions into a
// workspace beyond those that are known.
func (s *Store) pruned(path string, known map[string]bool) ([]Logged, error) {
	all, err := s.Receipts.List()
	if err != nil {
		return nil, err
	}
	undone := map[string]bool{}
	var list []Logged
	for i := len(all) - 1; i >= 0; i-- {
		var f struct {
			receiptFields
			Undid string `json:"undid"`
		}
		// A receipt that does not parse is `hutch receipts verify`'s business.
		if json.Unmarshal(all[i].Raw, &f) != nil || f.Workspace != strings.ToValidUTF8(path, "\uFFFD") {
			continue
		}
		if f.Undid != "" {
			undone[f.Undid] = true
			continue
		}
		if !f.Committed || f.Files == 0 || known[all[i].ID] {
			continue
		}
		p := Logged{
			ID: all[i].ID, Time: all[i].Time, State: Pruned, Argv: f.Argv, NoUndo: "its undo data is gone",
			Created: len(f.Created), Modified: len(f.Modified), Deleted: len(f.Deleted), Receipt: all[i].Raw,
		}
		if undone[p.ID] {
			p.State, p.NoUndo = promote.Undone, "undone already"
		}
		list = append(list, p)
	}
	return list, nil
}
