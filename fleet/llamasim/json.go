package llamasim

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// field and fieldList are a JSON object that keeps the real server's order of keys.
type field struct {
	name  string
	value any
}

type fieldList []field

// get is the value of a key, nil if it is not there.
func (l fieldList) get(name string) any {
	for _, f := range l {
		if f.name == name {
			return f.value
		}
	}
	return nil
}

// with is the list with a key set.
func (l fieldList) with(f field) fieldList {
	out := slices.Clone(l)
	for i := range out {
		if out[i].name == f.name {
			out[i] = f
			return out
		}
	}
	return append(out, f)
}

// textOf is a string of the request's, "" if it is none.
func textOf(raw json.RawMessage) string {
	var text string
	_ = json.Unmarshal(raw, &text)
	return text
}

// encode writes v, a line of JSON, without Go's escapes for HTML: the real server
// sends "<" as it is.
func encode(v any) []byte {
	var b bytes.Buffer
	b.Grow(512)
	encodeTo(&b, v)
	b.WriteByte('\n')
	return b.Bytes()
}

// encodeTo knows the few types that every event is made of; the rest, and strings
// that need escapes, are left to encoding/json.
func encodeTo(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case fieldList:
		b.WriteByte('{')
		for i, f := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteByte('"')
			b.WriteString(f.name)
			b.WriteString("\":")
			encodeTo(b, f.value)
		}
		b.WriteByte('}')
	case []fieldList:
		encodeList(b, v)
	case []any:
		encodeList(b, v)
	case int:
		b.Write(strconv.AppendInt(b.AvailableBuffer(), int64(v), 10))
	case int64:
		b.Write(strconv.AppendInt(b.AvailableBuffer(), v, 10))
	case bool:
		b.Write(strconv.AppendBool(b.AvailableBuffer(), v))
	case string:
		if plain(v) {
			b.WriteByte('"')
			b.WriteString(v)
			b.WriteByte('"')
			return
		}
		encodeOther(b, v)
	default:
		encodeOther(b, v)
	}
}

func encodeList[T any](b *bytes.Buffer, list []T) {
	b.WriteByte('[')
	for i, e := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		encodeTo(b, e)
	}
	b.WriteByte(']')
}

func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// encodeOther takes values of this package only, none of which can fail.
func encodeOther(b *bytes.Buffer, v any) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("llamasim: " + err.Error())
	}
	b.Truncate(b.Len() - 1) // the newline
}
