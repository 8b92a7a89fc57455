package policy

import (
	"encoding/hex"
	"fmt"

	"github.com/zeebo/blake3"
)

// WorkspaceFile is the policy of a workspace, read from its root on the host.
const WorkspaceFile = ".hutch.toml"

// workspaceDocument is what the workspace's file says.
type workspaceDocument struct {
	document
	text []byte
	// ground is the profile that the file names: its lines count as the
	// file's own, where that has none.
	ground *document
	// trust is what the user decided about this content; nil: not looked up.
	trust *bool
}

func parseWorkspace(text []byte) (*workspaceDocument, []string, error) {
	doc, notes, err := parseTOML(WorkspaceFile, text, true)
	if err != nil {
		return nil, nil, err
	}
	return &workspaceDocument{document: *doc, text: text}, notes, nil
}

// under puts a profile below the file's own lines.
func (w *workspaceDocument) under(profile string) error {
	ground, err := profileDocument(profile)
	if err != nil {
		return err
	}
	w.ground = ground
	return nil
}

func (w *workspaceDocument) get(k *Key) any {
	if w == nil {
		return nil
	}
	if v := k.get(&w.Policy); v != nil || w.ground == nil {
		return v
	}
	return k.get(&w.ground.Policy)
}

func (w *workspaceDocument) whereOf(k *Key) string {
	if k.get(&w.Policy) != nil || w.ground == nil {
		return w.where(k)
	}
	return fmt.Sprintf("%s, %s", w.where(&keys[0]), w.ground.where(k))
}

// Digest names a content.
func Digest(text []byte) string {
	sum := blake3.Sum256(text)
	return "blake3:" + hex.EncodeToString(sum[:])
}

// trusted reports whether the user trusted the content of the workspace's file.
func (r *resolution) trusted() (bool, error) {
	if r.own.trust == nil {
		ok := false
		if r.State != "" && r.Path != "" {
			var err error
			if ok, err = Trusted(r.State, r.Path, Digest(r.own.text)); err != nil {
				return false, err
			}
		}
		r.own.trust = &ok
	}
	return *r.own.trust, nil
}
