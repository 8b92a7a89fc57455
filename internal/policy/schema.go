package policy

import (
	"encoding/json"
	"strings"
)

// Schema returns the JSON Schema (2020-12) of a policy, made from the table of
// keys. It accepts what the parser accepts; a few texts that it cannot weigh,
// such as a memory limit of "1K" or a malformed pattern, only the parser refuses.
func Schema() []byte {
	root := object("a policy: what a command may do. What is left out is decided by weaker sources.")
	properties := root["properties"].(map[string]any)
	for i := range keys {
		k := &keys[i]
		at, name := properties, k.Name
		if section := k.section(); section != "" {
			if at[section] == nil {
				at[section] = object("")
			}
			at, name = at[section].(map[string]any)["properties"].(map[string]any), strings.TrimPrefix(k.Name, section+".")
		}
		at[name] = k.schema()
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "hutch policy"
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	return append(text, '\n')
}

func object(description string) map[string]any {
	o := map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
	if description != "" {
		o["description"] = description
	}
	return o
}

// The forms of texts. Neither the parser nor a pattern minds the case of a unit.
const (
	numberPattern   = `([0-9]+(\.[0-9]*)?|\.[0-9]+)`
	sizePattern     = `^\s*` + numberPattern + `[kKmMgGtT]?[iI]?[bB]?\s*$`
	sharePattern    = `^\s*0*([1-9]|[1-9][0-9]|100)%\s*$`
	durationPattern = `^\s*((` + numberPattern + `(ns|us|µs|μs|ms|s|m|h))+(` + numberPattern + `s?)?|` + numberPattern + `s?)\s*$`
	upPattern       = `(^|/)\.\.(/|$)`
)

func (k *Key) schema() map[string]any {
	s := map[string]any{}
	switch k.field(&shape).(type) {
	case **bool:
		s["type"] = "boolean"
	case **string:
		s["enum"] = Profiles()
	case **Size:
		text := []any{map[string]any{"type": "string", "pattern": sizePattern}}
		if k.share {
			text = append(text, map[string]any{"type": "string", "pattern": sharePattern})
		}
		s["anyOf"] = append(k.numbers("integer"), text...)
	case **Duration:
		s["anyOf"] = append(k.numbers("number"), map[string]any{"type": "string", "pattern": durationPattern})
	case **int64:
		s["anyOf"] = k.numbers("integer")
	case **float64:
		s["anyOf"] = k.numbers("number")
	case *[]uint16:
		s["type"], s["items"] = "array", map[string]any{"type": "integer", "minimum": 1, "maximum": 65535}
	case *map[string]string:
		s["type"], s["propertyNames"] = "object", map[string]any{"pattern": "^[^=\\x00]+$"}
		s["additionalProperties"] = map[string]any{"type": "string", "pattern": "^[^\\x00]*$"}
	case *[]string:
		item := map[string]any{"type": "string", "minLength": 1}
		switch k.Name {
		case "env.pass":
			item["pattern"] = "^[^=*\\x00]*\\*?$"
		case "paths.hide":
			item["pattern"], item["not"] = "^[^!\\x00][^\\x00]*$", map[string]any{"pattern": upPattern}
		default:
			item["pattern"], item["not"] = "^(/|~/)[^\\x00]*$", map[string]any{"pattern": upPattern}
		}
		s["type"], s["items"] = "array", item
	}
	s["description"] = k.Help
	if k.Default != "" {
		v, err := k.Parse(k.Default)
		if err == nil {
			s["default"] = v
		}
	}
	return s
}

// numbers are the numbers that a key takes: 0, and what lies in its bounds.
func (k *Key) numbers(kind string) []any {
	return []any{map[string]any{"const": 0}, map[string]any{"type": kind, "minimum": k.min, "maximum": k.max}}
}
