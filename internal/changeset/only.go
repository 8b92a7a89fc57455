package changeset

// Only returns the entries that pass, to be looked at: unlike a part that Split
// gives, it cannot always be promoted by itself.
func (c *Changeset) Only(pass func(*Entry) bool) *Changeset {
	some := &Changeset{Entries: []Entry{}, Skipped: c.Skipped, Ancestors: c.Ancestors, GitChanged: c.GitChanged}
	for i := range c.Entries {
		if pass(&c.Entries[i]) {
			some.Entries = append(some.Entries, c.Entries[i])
		}
	}
	some.seal()
	return some
}
