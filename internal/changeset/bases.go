package changeset

// InheritBases takes over what an earlier reading of the same layer, or of the
// one it was forked from, knew of the inodes that the branch saw: a remounted
// overlay does not tell them any more.
func (c *Changeset) InheritBases(earlier *Changeset) {
	known := map[string]uint64{}
	for i := range earlier.Entries {
		known[earlier.Entries[i].Path] = earlier.Entries[i].BaseIno
	}
	for i := range c.Entries {
		if e := &c.Entries[i]; e.BaseIno == 0 {
			e.BaseIno = known[e.Path]
		}
	}
	for path, ino := range earlier.Ancestors {
		if c.Ancestors == nil {
			c.Ancestors = map[string]uint64{}
		}
		if c.Ancestors[path] == 0 {
			c.Ancestors[path] = ino
		}
	}
}
