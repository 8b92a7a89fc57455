package box

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hutch/internal/api"
)

// maxEnded bounds the records of boxes that have ended.
const maxEnded = 1000

// saveEnded notes how a box ended. Nothing depends on it, so nothing is flushed.
func (s *Store) saveEnded(r *Record, as api.State) {
	gone, now := *r, time.Now().UTC()
	gone.State, gone.Ended, gone.Layers, gone.Checkpoints = as, &now, nil, nil
	text, err := json.Marshal(gone)
	if err != nil {
		return
	}
	dir := filepath.Join(s.Path, "ended")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return
	}
	_ = os.WriteFile(filepath.Join(dir, r.ID+".json"), text, 0o600)
	s.trimEnded(maxEnded)
}

func (s *Store) trimEnded(most int) (removed int) {
	dir := filepath.Join(s.Path, "ended")
	entries, _ := os.ReadDir(dir)
	if len(entries) <= most {
		return 0
	}
	// Some more than needed, so that not every end has to list them all.
	drop := len(entries) - most + min(most/10, len(entries))
	at := func(e fs.DirEntry) time.Time {
		if info, err := e.Info(); err == nil {
			return info.ModTime()
		}
		return time.Time{}
	}
	times := make(map[string]time.Time, len(entries))
	for _, e := range entries {
		times[e.Name()] = at(e)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return times[a.Name()].Compare(times[b.Name()]) })
	for _, e := range entries[:min(drop, len(entries))] {
		if os.Remove(filepath.Join(dir, e.Name())) == nil {
			removed++
		}
	}
	return removed
}

// forgetEnded drops the records of boxes that ended longer ago than age.
func (s *Store) forgetEnded(age time.Duration) {
	dir := filepath.Join(s.Path, "ended")
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if old(e, age) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// ended finds a box that has ended, by its whole id or its name.
func (s *Store) ended(name string) (*Record, error) {
	if isID(name) {
		text, err := os.ReadFile(filepath.Join(s.Path, "ended", name+".json"))
		if err != nil {
			return nil, err
		}
		return parseRecord(text)
	}
	all := s.allEnded()
	for i := len(all) - 1; i >= 0; i-- {
		if name != "" && (all[i].Name == name || strings.HasPrefix(all[i].ID, name)) {
			return &all[i], nil
		}
	}
	return nil, fs.ErrNotExist
}

func (s *Store) allEnded() []Record {
	dir := filepath.Join(s.Path, "ended")
	entries, _ := os.ReadDir(dir)
	var records []Record
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if r, err := parseRecord(text); err == nil {
			records = append(records, *r)
		}
	}
	slices.SortFunc(records, func(a, b Record) int { return a.Created.Compare(b.Created) })
	return records
}
