package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// keyed reads a configuration file into its keys, each with a text that differs
// when its value does. Keys are in lower case: what reads them may not care.
// A file that cannot be read so is an error, and the guard then takes it that
// every key is in it.
type keyed func([]byte) (map[string]string, error)

// maxKeys bounds what one file is taken apart into.
const (
	maxKeys  = 100_000
	maxDepth = 64
)

var errKeys = errors.New("more keys, or deeper ones, than anybody writes")

// sep joins the parts of a key. No part of a key that matters holds it.
const sep = "."

// flatten turns nested maps and lists into dotted keys.
func flatten(value any) (map[string]string, error) {
	flat := map[string]string{}
	var walk func(at string, value any, depth int) error
	walk = func(at string, value any, depth int) error {
		if len(flat) > maxKeys || depth > maxDepth {
			return errKeys
		}
		switch v := value.(type) {
		case map[string]any:
			flat[at] = "{}"
			for key, inner := range v {
				if err := walk(joinKey(at, strings.ToLower(key)), inner, depth+1); err != nil {
					return err
				}
			}
		case []any:
			flat[at] = "[]"
			for i, inner := range v {
				if err := walk(joinKey(at, strconv.Itoa(i)), inner, depth+1); err != nil {
					return err
				}
			}
		default:
			flat[at] = fmt.Sprintf("%T %v", v, v)
		}
		return nil
	}
	err := walk("", value, 0)
	delete(flat, "")
	return flat, err
}

func joinKey(at, key string) string {
	if at == "" {
		return key
	}
	return at + sep + key
}

// jsonKeys reads JSON, with the comments and trailing commas that editors
// allow.
func jsonKeys(text []byte) (map[string]string, error) {
	plain, err := plainJSON(text)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(plain)) == 0 {
		return nil, nil
	}
	var value any
	if err := json.Unmarshal(plain, &value); err != nil {
		return nil, err
	}
	return flatten(value)
}

// plainJSON takes comments and trailing commas out of JSON.
func plainJSON(text []byte) ([]byte, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	out := make([]byte, 0, len(text))
	comma := -1 // where in out the last comma is that nothing but space follows
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"':
			end := i + 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(text) {
				return nil, errors.New("a string does not end")
			}
			out = append(out, text[i:end+1]...)
			i, comma = end, -1
			continue
		case c == '/' && i+1 < len(text) && text[i+1] == '/':
			for i < len(text) && text[i] != '\n' {
				i++
			}
			out = append(out, '\n')
			continue
		case c == '/' && i+1 < len(text) && text[i+1] == '*':
			end := bytes.Index(text[i+2:], []byte("*/"))
			if end < 0 {
				return nil, errors.New("a comment does not end")
			}
			i += 2 + end + 1
			out = append(out, ' ')
			continue
		case c == ',':
			comma = len(out)
		case c == '}' || c == ']':
			if comma >= 0 {
				out[comma] = ' '
			}
			comma = -1
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			comma = -1
		}
		out = append(out, c)
	}
	return out, nil
}

func tomlKeys(text []byte) (map[string]string, error) {
	var value map[string]any
	if err := toml.Unmarshal(text, &value); err != nil {
		return nil, err
	}
	return flatten(value)
}

// lines yields the lines of text without their ends.
func lines(text []byte) []string {
	return strings.Split(strings.ReplaceAll(strings.TrimPrefix(string(text), "\ufeff"), "\r\n", "\n"), "\n")
}

// collector gathers keys that may be given more than once: all that is said of
// one is its text. Builders, since a box may say a million things of one key.
type collector struct {
	texts map[string]*strings.Builder
}

func (c *collector) add(key, value string) error {
	text := c.texts[key]
	if text == nil {
		if len(c.texts) == maxKeys {
			return errKeys
		}
		if c.texts == nil {
			c.texts = map[string]*strings.Builder{}
		}
		text = &strings.Builder{}
		c.texts[key] = text
	} else {
		text.WriteByte('\n')
	}
	text.WriteString(value)
	return nil
}

func (c *collector) keys() map[string]string {
	keys := make(map[string]string, len(c.texts))
	for key, text := range c.texts {
		keys[key] = text.String()
	}
	return keys
}

// envKeys reads a file of NAME=value lines. The tools that read such files
// differ in what a quote spans, so every line that could be a setting is one.
// Names keep their case.
func envKeys(text []byte) (map[string]string, error) {
	var keys collector
	for _, line := range lines(text) {
		for line := range strings.SplitSeq(line, "\r") {
			line = strings.TrimSpace(line)
			if rest, ok := strings.CutPrefix(line, "export"); ok && strings.TrimLeft(rest, " \t") != rest {
				line = strings.TrimSpace(rest)
			}
			at := strings.IndexAny(line, "=:")
			if at <= 0 || line[0] == '#' {
				continue
			}
			name := strings.Trim(strings.TrimSpace(line[:at]), `"'`)
			if strings.ContainsAny(name, " \t") {
				continue
			}
			if err := keys.add(name, strings.TrimSpace(line[at+1:])); err != nil {
				return nil, err
			}
		}
	}
	return keys.keys(), nil
}

// iniKeys reads what Python's configparser and its like read: "section.key".
func iniKeys(text []byte) (map[string]string, error) {
	var keys collector
	section, last := "", ""
	for _, line := range lines(text) {
		bare := strings.TrimSpace(line)
		switch {
		case bare == "" || bare[0] == '#' || bare[0] == ';':
			continue
		case bare[0] == '[' && strings.HasSuffix(bare, "]"):
			section, last = strings.ToLower(bare[1:len(bare)-1]), ""
			continue
		}
		if last != "" && (line[0] == ' ' || line[0] == '\t') {
			if err := keys.add(last, bare); err != nil { // goes on
				return nil, err
			}
		}
		at := strings.IndexAny(bare, "=:")
		if at < 0 {
			continue
		}
		last = joinKey(section, strings.ToLower(strings.TrimSpace(bare[:at])))
		if err := keys.add(last, strings.TrimSpace(bare[at+1:])); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}

// yamlKeys reads the keys at the top of a YAML mapping in block style, each
// with the lines beneath it. What could hide a key, as flow style at the top,
// merges, tags, anchors and escapes do, is an error.
func yamlKeys(text []byte) (map[string]string, error) {
	var keys collector
	last := ""
	for i, line := range lines(text) {
		bare := strings.TrimRight(line, " \t\r")
		if bare == "" || bare[0] == '#' || bare == "---" || bare == "..." || bare[0] == '%' {
			continue
		}
		if bare[0] == ' ' || bare[0] == '-' && last != "" || strings.TrimLeft(bare, " ") == "" {
			if last == "" {
				return nil, fmt.Errorf("line %d is indented beneath nothing", i+1)
			}
			if err := keys.add(last, bare); err != nil {
				return nil, err
			}
			continue
		}
		key, value, ok := strings.Cut(bare+" ", ": ")
		if !ok {
			return nil, fmt.Errorf("line %d is no key", i+1)
		}
		key = strings.TrimSpace(key)
		if n := len(key); n > 1 && (key[0] == '"' || key[0] == '\'') && key[n-1] == key[0] {
			key = key[1 : n-1]
		}
		if key == "" || strings.ContainsAny(key, "\"'{}[]\t&*!|>%@`\\?,#") || strings.Contains(key, "<<") {
			return nil, fmt.Errorf("line %d has a key in a form that is not looked through", i+1)
		}
		last = strings.ToLower(key)
		if err := keys.add(last, strings.TrimSpace(value)); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}

// frontMatter reads the keys between the "---" lines at the top of a text; a
// text without them has none.
func frontMatter(text []byte) (map[string]string, error) {
	all := lines(text)
	for len(all) > 0 && strings.TrimSpace(all[0]) == "" {
		all = all[1:]
	}
	if len(all) == 0 || strings.TrimSpace(all[0]) != "---" {
		return nil, nil
	}
	end := slices.IndexFunc(all[1:], func(line string) bool { return strings.TrimRight(line, " \t") == "---" })
	if end < 0 {
		return nil, nil
	}
	return yamlKeys([]byte(strings.Join(all[1:1+end], "\n")))
}

// goModKeys reads the directives of a go.mod or go.work file.
func goModKeys(text []byte) (map[string]string, error) {
	var keys collector
	block := ""
	for _, line := range lines(text) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case block != "" && words[0] == ")":
			block = ""
			continue
		case block == "" && len(words) == 2 && words[1] == "(":
			block = words[0]
			continue
		case block != "":
			words = append([]string{block}, words...)
		}
		if err := keys.add(words[0], strings.Join(words[1:], " ")); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}

// goGenerate reads the commands that go generate would run.
func goGenerate(text []byte) (map[string]string, error) {
	const mark = "//go:generate"
	if !bytes.Contains(text, []byte(mark)) {
		return nil, nil
	}
	keys := map[string]string{}
	for _, line := range lines(text) {
		if rest, ok := strings.CutPrefix(line, mark); ok && (strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "\t")) {
			keys["go:generate"+rest] = ""
		}
	}
	return keys, nil
}

// todoKeys reads the commands of a rebase that is under way.
func todoKeys(text []byte) (map[string]string, error) {
	var keys collector
	for _, line := range lines(text) {
		command, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		command, tabbed, _ := strings.Cut(command, "\t")
		if err := keys.add(strings.ToLower(command), tabbed+rest); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}
