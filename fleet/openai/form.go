package openai

import (
	"bytes"
	"mime"
	"net/http"
	"strings"

	"github.com/slotfleet/slotfleet/fleet"
)

// maxFormParts bounds a form; a transcription has a handful.
const maxFormParts = 64

// form is a multipart body. Files in it are large and never looked into.
type form struct {
	typ      string // the content type, with the boundary
	boundary string
	body     []byte
	end      int // where the last delimiter begins, with its line end
	parts    []formPart
}

type formPart struct {
	name string
	val  span
}

// read finds the parts of the body (RFC 7578).
func (f *form) read(contentType string, body []byte) *Error {
	t, p, err := mime.ParseMediaType(contentType)
	if err != nil || t != "multipart/form-data" || p["boundary"] == "" {
		return invalid("", "invalid_content_type", "the body must be multipart/form-data with a boundary")
	}
	f.typ, f.boundary, f.body = contentType, p["boundary"], body
	wrong := invalid("", "invalid_form", "the body is not a whole multipart form")
	mark := []byte("\r\n--" + f.boundary)
	at := 0
	if !bytes.HasPrefix(body, mark[2:]) { // what stands before the first is nothing
		if at = bytes.Index(body, mark); at < 0 {
			return wrong
		}
		at += 2
	}
	for at += len(mark) - 2; ; {
		rest := body[at:]
		if bytes.HasPrefix(rest, []byte("--")) {
			if len(f.parts) == 0 {
				return wrong
			}
			f.end = at - len(mark)
			return nil
		}
		rest = bytes.TrimLeft(rest, " \t")
		if !bytes.HasPrefix(rest, []byte("\r\n")) {
			return wrong
		}
		from := len(body) - len(rest)
		head := bytes.Index(body[from:], []byte("\r\n\r\n"))
		if head < 0 || len(f.parts) == maxFormParts {
			return wrong
		}
		val := from + head + 4
		to := bytes.Index(body[val:], mark)
		if to < 0 {
			return wrong
		}
		to += val
		name := partName(body[from : from+head])
		if name != "" && (name == "model" || name == "stream") && f.find(name) != nil {
			return twice(name)
		}
		f.parts = append(f.parts, formPart{name, span{val, to}})
		at = to + len(mark)
	}
}

// partName returns the name of a part from its head; empty: it has none.
func partName(head []byte) string {
	for line := range strings.SplitSeq(string(head), "\r\n") {
		key, val, _ := strings.Cut(line, ":")
		if http.CanonicalHeaderKey(strings.TrimSpace(key)) != "Content-Disposition" {
			continue
		}
		if _, p, err := mime.ParseMediaType(val); err == nil {
			return p["name"]
		}
	}
	return ""
}

func (f *form) find(name string) *formPart {
	for i := range f.parts {
		if f.parts[i].name == name {
			return &f.parts[i]
		}
	}
	return nil
}

func (f *form) text(name string) string {
	p := f.find(name)
	if p == nil || p.val.to-p.val.from > maxModel+1 {
		return ""
	}
	return string(p.val.of(f.body))
}

func (f *form) model() string { return f.text("model") }
func (f *form) streams() bool { return f.text("stream") == "true" }

// request is the form as a node gets it: it is always asked for a stream.
func (f *form) request(path string, j *Job) fleet.Assignment {
	var e edits
	if p := f.find("stream"); p != nil {
		e.replace(p.val, yes)
	} else {
		e.replace(span{f.end, f.end}, []byte("\r\n--"+f.boundary+"\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue"))
	}
	if p := f.find("model"); p != nil && j.alias {
		e.replace(p.val, []byte(j.model))
	}
	return fleet.Assignment{Path: path, ContentType: f.typ, Body: e.apply(nil, f.body)}
}
