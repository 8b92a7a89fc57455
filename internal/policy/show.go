package policy

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// TOML writes the policy in force as a document, which says the same when it is
// read again. With explain, each line carries its source.
func (f *InForce) TOML(explain bool) string {
	var b strings.Builder
	section := ""
	for i := range keys {
		k := &keys[i]
		if s := k.section(); s != section {
			section = s
			fmt.Fprintf(&b, "\n[%s]\n", section)
		}
		name := k.Name[strings.IndexByte(k.Name, '.')+1:]
		line := name + " = " + format(k.inForce(f))
		if !explain {
			fmt.Fprintln(&b, line)
			continue
		}
		var sources []string
		for _, o := range f.Origins {
			if o.Key == k.Name {
				source := printed(o.Source)
				if k.list() {
					source += ": " + o.Value
				}
				sources = append(sources, source)
			}
		}
		if len(sources) == 0 {
			sources = []string{"nobody said anything"}
		}
		fmt.Fprintf(&b, "%-36s # %s\n", line, strings.Join(sources, "; "))
	}
	if explain {
		for _, note := range f.Notes {
			fmt.Fprintf(&b, "\n# %s\n", printed(note))
		}
	}
	return b.String()
}

// printed keeps a text in its comment: names of files are anybody's choice.
func printed(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '?'
	}, text)
}

// Document returns the policy in force as a document, which says the same when
// it is given.
func (f *InForce) Document() Policy {
	var p Policy
	for i := range keys {
		keys[i].set(&p, keys[i].inForce(f))
	}
	return p
}

// inForce returns what holds for the key, of the type that get returns.
func (k *Key) inForce(f *InForce) any {
	switch p := k.force(f).(type) {
	case *bool:
		return *p
	case *string:
		return *p
	case *float64:
		return *p
	case *[]uint16:
		return *p
	case *time.Duration:
		return Duration(*p)
	case *int64:
		if _, ok := k.field(&shape).(**Size); ok {
			return Size(*p)
		}
		return *p
	case *[]string:
		if k.order != moreDoors {
			return *p
		}
		set := map[string]string{}
		for _, e := range *p {
			name, text, _ := strings.Cut(e, "=")
			set[name] = text
		}
		return set
	}
	return nil
}
