package promote

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Log lists the finished promotions that the workspace still holds data of, the
// newest first. It changes nothing.
func Log(workspaceFD int, key Key) ([]Promotion, error) {
	s, err := openShed(context.Background(), workspaceFD, key)
	if err != nil || s == nil {
		return nil, err
	}
	defer s.close()
	all, err := s.finished()
	if err != nil {
		return nil, err
	}
	var list []Promotion
	for _, k := range all {
		p := Promotion{ID: k.id, Time: time.Unix(0, k.Time).UTC(), Bytes: k.Held, State: k.state}
		if k.foreign {
			p.State, p.NoUndo = Foreign, ErrForeign.Error()
		} else if err := s.detail(&p); err != nil {
			p.NoUndo = err.Error()
		}
		list = append(list, p)
	}
	return list, nil
}

// detail adds what only the whole journal says.
func (s *shed) detail(p *Promotion) error {
	txn, err := fsat.OpenDir(s.fd, txnPrefix+p.ID)
	if err != nil {
		return err
	}
	defer unix.Close(txn)
	file := doneFile
	if p.State == Aborted {
		file = abortedFile
	}
	data, err := readFile(txn, file)
	if err != nil {
		return err
	}
	j, err := s.auth.journal(p.ID, data)
	if err != nil {
		return err
	}
	p.Receipt, p.Tally, p.Time = j.Receipt, j.Tally, time.Unix(0, j.head.Time).UTC()
	switch p.State {
	case Undone:
		p.NoUndo = "undone already"
	case Aborted:
		p.NoUndo = "it was interrupted and taken back"
	default:
		if _, err := fsat.LstatName(txn, afterFile); err != nil {
			p.NoUndo = "what stood after it was not written down"
		}
	}
	return nil
}
