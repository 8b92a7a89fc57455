package changeset

import (
	"slices"

	"hutch/internal/fsat"
)

// Names lists the paths that were created, modified and deleted, sorted as
// bytes; directories end in "/". None of the lists is nil.
func (c *Changeset) Names() (created, modified, deleted []string) {
	created, modified, deleted = []string{}, []string{}, []string{}
	for i := range c.Entries {
		e := &c.Entries[i]
		switch e.Op {
		case Created:
			created = append(created, display(e.Path, e.After))
		case Modified:
			modified = append(modified, display(e.Path, e.After))
		case Deleted:
			deleted = append(deleted, display(e.Path, e.Before))
		}
	}
	slices.Sort(created)
	slices.Sort(modified)
	slices.Sort(deleted)
	return created, modified, deleted
}

func display(path string, s *State) string {
	if s.Type == fsat.Directory {
		return path + "/"
	}
	return path
}
