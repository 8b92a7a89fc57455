package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// maxDocument bounds a file of policy.
const maxDocument = 1 << 20

// document is what one source says, and where.
type document struct {
	Policy
	// where names the source of a key: "~/.config/hutch/config.toml:4".
	where func(k *Key) string
}

// foreign are the sections of configuration files that belong to other rooms.
var foreign = []string{"guard"}

// ParseTOML reads a document. name is what errors call it, with the line.
func ParseTOML(name string, text []byte) (*Policy, error) {
	doc, _, err := parseTOML(name, text, false)
	if err != nil {
		return nil, err
	}
	return &doc.Policy, nil
}

// ParseJSON reads a document. name is what errors call it, with the line.
func ParseJSON(name string, text []byte) (*Policy, error) {
	doc, err := parseJSON(name, text)
	if err != nil {
		return nil, err
	}
	return &doc.Policy, nil
}

// parseTOML reads a document. In a shared file there may be sections of other
// rooms; those that nobody knows are returned as notes.
func parseTOML(name string, text []byte, shared bool) (*document, []string, error) {
	if len(text) > maxDocument {
		return nil, nil, fmt.Errorf("%s: larger than 1 MiB", name)
	}
	var tree map[string]any
	if err := toml.Unmarshal(text, &tree); err != nil {
		var syntax *toml.DecodeError
		if errors.As(err, &syntax) {
			line, _ := syntax.Position()
			return nil, nil, fmt.Errorf("%s:%d: %s", name, line, strings.TrimPrefix(syntax.Error(), "toml: "))
		}
		return nil, nil, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "toml: "))
	}
	lines := tomlLines(text)
	var notes []string
	if shared {
		for _, top := range sorted(tree) {
			if slices.Contains(sections(), top) || keyNamed(top) != nil {
				continue
			}
			if !slices.Contains(foreign, top) {
				notes = append(notes, fmt.Sprintf("%s:%d: nothing reads %s; a policy has %s", name, lines[top], top, tops()))
			}
			delete(tree, top)
		}
	}
	doc, err := read(name, tree, lines)
	return doc, notes, err
}

// maxNames bounds the names of a key whose line is noted: no key of a policy has
// more, and a key of very many would fill the memory with its beginnings.
const maxNames = 3

// tomlLines returns the line of every key, by its dotted name.
func tomlLines(text []byte) map[string]int {
	lines := map[string]int{}
	var p unstable.Parser
	p.Reset(text)
	name := func(prefix string, keys unstable.Iterator) (string, int) {
		line := 0
		for depth := strings.Count(prefix, "."); keys.Next() && depth < maxNames; depth++ {
			n := keys.Node()
			if prefix != "" {
				prefix += "."
			}
			prefix += string(n.Data)
			line = 1 + bytes.Count(text[:n.Raw.Offset], []byte("\n"))
			if _, known := lines[prefix]; !known {
				lines[prefix] = line
			}
		}
		return prefix, line
	}
	var walk func(prefix string, n *unstable.Node)
	walk = func(prefix string, n *unstable.Node) {
		key, _ := name(prefix, n.Key())
		if v := n.Value(); v.Kind == unstable.InlineTable {
			for inner := v.Children(); inner.Next(); {
				walk(key, inner.Node())
			}
		}
	}
	table := ""
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table, _ = name("", e.Key())
		case unstable.KeyValue:
			walk(table, e)
		}
	}
	return lines
}

func parseJSON(name string, text []byte) (*document, error) {
	if len(text) > maxDocument {
		return nil, fmt.Errorf("%s: larger than 1 MiB", name)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	lines := map[string]int{}
	here := func() int { return 1 + bytes.Count(text[:decoder.InputOffset()], []byte("\n")) }
	fail := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the document ends too early")
		}
		return fmt.Errorf("%s:%d: %w", name, here(), err)
	}
	var next func(path string, depth int) (any, error)
	next = func(path string, depth int) (any, error) {
		if depth > 100 {
			return nil, errors.New("nested too deeply")
		}
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		switch token {
		case json.Delim('{'):
			object := map[string]any{}
			for decoder.More() {
				key, err := decoder.Token()
				if err != nil {
					return nil, err
				}
				field := key.(string)
				if _, double := object[field]; double {
					return nil, fmt.Errorf("%q is there twice", field)
				}
				inner := field
				if path != "" {
					inner = path + "." + field
				}
				lines[inner] = here()
				if object[field], err = next(inner, depth+1); err != nil {
					return nil, err
				}
			}
			_, err = decoder.Token()
			return object, err
		case json.Delim('['):
			list := []any{}
			for decoder.More() {
				element, err := next(path, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, element)
			}
			_, err = decoder.Token()
			return list, err
		}
		return token, nil
	}
	root, err := next("", 0)
	if err != nil {
		return nil, fail(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fail(errors.New("something follows the document"))
	}
	tree, ok := root.(map[string]any)
	if !ok {
		return nil, fail(errors.New("a policy is an object"))
	}
	return read(name, tree, lines)
}

// read takes the tree of a document apart by the table of keys.
func read(name string, tree map[string]any, lines map[string]int) (*document, error) {
	doc := &document{where: func(k *Key) string { return fmt.Sprintf("%s:%d", name, lines[k.Name]) }}
	fail := func(path, format string, args ...any) error {
		return fmt.Errorf("%s:%d: "+format, append([]any{name, lines[path]}, args...)...)
	}
	take := func(k *Key, raw any) error {
		v, err := k.decode(raw)
		if err != nil {
			return fail(k.Name, "%s: %w", k.Name, err)
		}
		k.set(&doc.Policy, v)
		return nil
	}
	for _, top := range sorted(tree) {
		if k := keyNamed(top); k != nil {
			if err := take(k, tree[top]); err != nil {
				return nil, err
			}
			continue
		}
		if !slices.Contains(sections(), top) {
			return nil, fail(top, "unknown key %s; a policy has %s", top, tops())
		}
		table, ok := tree[top].(map[string]any)
		if !ok {
			return nil, fail(top, "%s is a table; it has %s", top, siblings(top))
		}
		for _, field := range sorted(table) {
			k := keyNamed(top + "." + field)
			if k == nil {
				return nil, fail(top+"."+field, "unknown key %s.%s; [%s] has %s", top, field, top, siblings(top))
			}
			if err := take(k, table[field]); err != nil {
				return nil, err
			}
		}
	}
	return doc, nil
}

func tops() string { return siblings("") + ", " + strings.Join(sections(), ", ") }

func sorted(table map[string]any) []string {
	names := make([]string, 0, len(table))
	for name := range table {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// environment reads the variables of the keys. A name that begins like one of
// them and is none is an error: it was meant to limit something.
func environment(environ []string) (*document, error) {
	var doc *document
	for _, e := range environ {
		if !strings.HasPrefix(e, "HUTCH_") {
			continue
		}
		name, text, _ := strings.Cut(e, "=")
		if text == "" {
			continue
		}
		k := keyOfVariable(name)
		if k == nil {
			if near := sectionOfVariable(name); near != "" {
				return nil, fmt.Errorf("environment: %s names no key of the policy; [%s] has %s", name, near, siblings(near))
			}
			continue
		}
		v, err := k.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("environment: %s: %w", name, err)
		}
		if doc == nil {
			doc = &document{where: func(k *Key) string { return "environment " + k.Environment() }}
		}
		k.set(&doc.Policy, v)
	}
	return doc, nil
}

func keyOfVariable(name string) *Key {
	for i := range keys {
		if keys[i].Environment() == name {
			return &keys[i]
		}
	}
	return nil
}

// sectionOfVariable returns the section that a name was meant for: one that is
// misspelt in its first word, too, shall not be passed over in silence.
func sectionOfVariable(name string) string {
	const telling = 4 // letters
	word, _, _ := strings.Cut(strings.TrimPrefix(name, "HUTCH_"), "_")
	for _, s := range sections() {
		section := strings.ToUpper(s)
		if word == section || len(word) >= telling && len(section) >= telling && word[:telling] == section[:telling] {
			return s
		}
	}
	return ""
}
