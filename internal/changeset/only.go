package changeset

// Only returns the part of the changeset whose paths pass, with a digest of
// its own.
func (c *Changeset) Only(pass func(path string) bool) *Changeset {
	part := &Changeset{Entries: []Entry{}, Ancestors: c.Ancestors}
	for _, e := range c.Entries {
		if pass(e.Path) {
			part.Entries = append(part.Entries, e)
		}
	}
	for _, s := range c.Skipped {
		if pass(s.Path) {
			part.Skipped = append(part.Skipped, s)
		}
	}
	part.seal()
	return part
}
