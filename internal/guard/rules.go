package guard

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"hutch/internal/globs"
)

// Rules is what the user, and the workspace, add to the table.
type Rules struct {
	allow   *globs.Set
	protect []*globs.Set // the user's and the workspace's: no "!" of one takes from the other
	rows    []userRow
}

// userRow is one [[guard.rule]].
type userRow struct {
	Row
	paths *globs.Set
}

// WorkspaceFile is the policy of a workspace, read from its root.
const WorkspaceFile = ".hutch.toml"

// maxRules bounds a file of rules.
const maxRules = 1 << 20

// document is a configuration file as far as the guard reads it. Other sections
// belong to other rooms.
type document struct {
	Guard struct {
		Allow   []string `toml:"allow"`
		Protect []string `toml:"protect"`
		Rule    []struct {
			ID    string   `toml:"id"`
			Paths []string `toml:"paths"`
			Tier  string   `toml:"tier"`
			Who   string   `toml:"who"`
			When  string   `toml:"when"`
			Why   string   `toml:"why"`
		} `toml:"rule"`
	} `toml:"guard"`
}

// add reads the [guard] section of one file. A workspace's may only add to what
// is held: it came with the project, or an agent wrote it in an earlier change.
func (r *Rules) add(name string, text []byte, workspace bool) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: [guard] "+format, append([]any{name}, args...)...)
	}
	if len(text) > maxRules {
		return fail("is in a file larger than 1 MiB")
	}
	var doc document
	decoder := toml.NewDecoder(strings.NewReader(string(text))).DisallowUnknownFields()
	if err := decoder.Decode(&doc); err != nil {
		if err := explain(name, err); err != nil {
			return err
		}
	}
	guard := &doc.Guard
	if workspace && len(guard.Allow) > 0 {
		return fail("has allow, which only the user's own configuration may have; remove it")
	}
	for _, list := range []struct {
		key      string
		patterns []string
	}{{"allow", guard.Allow}, {"protect", guard.Protect}} {
		set, err := globs.Parse(list.patterns)
		switch {
		case err != nil:
			return fail("%s: %w", list.key, err)
		case set.Empty():
		case list.key == "allow":
			r.allow = set
		default:
			r.protect = append(r.protect, set)
		}
	}
	for i := range guard.Rule {
		rule := &guard.Rule[i]
		at := fmt.Sprintf("rule %d (%q)", i+1, rule.ID)
		row := Row{ID: rule.ID, Tier: Tier(rule.Tier), Who: rule.Who, When: rule.When, Why: rule.Why, Paths: rule.Paths, Source: name}
		switch {
		case row.ID == "" || row.Who == "" || row.When == "" || row.Why == "" || len(row.Paths) == 0:
			return fail("%s: id, paths, tier, who, when and why must all be given", at)
		case row.Tier.rank() > 2:
			return fail("%s: tier %q is none of hold, open, flag", at, rule.Tier)
		case workspace && row.Tier != Hold:
			return fail("%s: a workspace's rule can only have tier hold", at)
		case slices.ContainsFunc(table, func(known Row) bool { return known.ID == row.ID }):
			return fail("%s: the table has a row of that id; choose another", at)
		}
		set, err := globs.Parse(rule.Paths)
		if err != nil {
			return fail("%s: %w", at, err)
		}
		r.rows = append(r.rows, userRow{row, set})
	}
	return nil
}

// explain turns an error of the decoder into one with file and line; nil where
// it is about another room's section.
func explain(name string, err error) error {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		for i := range strict.Errors {
			e := &strict.Errors[i]
			key := e.Key()
			if len(key) == 0 || key[0] != "guard" {
				continue
			}
			line, _ := e.Position()
			return fmt.Errorf("%s:%d: unknown key %s; [guard] has allow, protect and [[guard.rule]] with id, paths, tier, who, when, why",
				name, line, strings.Join(key, "."))
		}
		return nil
	}
	var syntax *toml.DecodeError
	if errors.As(err, &syntax) {
		line, _ := syntax.Position()
		return fmt.Errorf("%s:%d: %s", name, line, strings.TrimPrefix(syntax.Error(), "toml: "))
	}
	return fmt.Errorf("%s: %w", name, err)
}
