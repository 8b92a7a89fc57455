package guard

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table into docs/guard.md")

const docPath = "../../docs/guard.md"

// TestDocIsCurrent: the documentation's table is made from the data.
func TestDocIsCurrent(t *testing.T) {
	doc, err := os.ReadFile(docPath)
	if os.IsNotExist(err) && os.Getuid() != 0 {
		t.Skip("the test binary was copied away from the sources")
	}
	must(t, err)
	head, rest, ok := bytes.Cut(doc, []byte("-update -->\n"))
	_, tail, ok2 := bytes.Cut(rest, []byte("<!-- end -->"))
	if !ok || !ok2 {
		t.Fatal("the marks of the table are gone")
	}
	want := string(head) + "-update -->\n" + documentation() + "<!-- end -->" + string(tail)
	if *update {
		must(t, os.WriteFile(docPath, []byte(want), 0o644))
		return
	}
	if want != string(doc) {
		t.Error("docs/guard.md is not current: go test ./internal/guard -run Doc -update")
	}
}

func documentation() string {
	var out strings.Builder
	for _, tier := range []Tier{Hold, Open, Flag} {
		fmt.Fprintf(&out, "\n### %s\n\n| row | who runs it, and when | what is looked for | why | seen in |\n|---|---|---|---|---|\n",
			map[Tier]string{Hold: "Held", Open: "Flagged, runs on open", Flag: "Flagged"}[tier])
		for _, row := range Table() {
			if row.Tier != tier {
				continue
			}
			var look []string
			for _, list := range []struct {
				before string
				paths  []string
			}{{"", row.Paths}, {"but not ", row.Except}} {
				if len(list.paths) > 0 {
					look = append(look, list.before+"`"+strings.Join(list.paths, "` `")+"`")
				}
			}
			if row.Content != "" {
				look = append(look, row.Content)
			}
			if row.Restricts {
				look = append(look, "*deletion too*")
			}
			fmt.Fprintf(&out, "| `%s` | %s, %s | %s | %s | %s |\n", row.ID, row.Who, row.When, strings.Join(look, "; "), row.Why, row.Source)
		}
	}
	return out.String() + "\n"
}

// TestRowsAreComplete: a row without a reason or a source is not law.
func TestRowsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range Table() {
		if row.ID == "" || row.Who == "" || row.When == "" || row.Why == "" || row.Source == "" || row.Tier.rank() > 2 || len(row.Paths) == 0 && row.Content == "" || row.judge != nil && row.Content == "" {
			t.Errorf("row %q is not complete", row.ID)
		}
		if strings.ContainsAny(row.Why+row.Who+row.When+row.Content+row.Source, "|\n") || strings.HasSuffix(row.Why, ".") {
			t.Errorf("row %q has a text that a table cannot hold", row.ID)
		}
		if seen[row.ID] {
			t.Errorf("row %q is there twice", row.ID)
		}
		seen[row.ID] = true
	}
}
