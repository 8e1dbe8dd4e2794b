package openai

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

const audioPath = "/v1/audio/transcriptions"

// recording is the file of a form, with what looks like a delimiter in it.
const recording = "RIFF\r\n\r\n--x\r\n\x00\xff--"

func formOf(t testing.TB, fields ...string) (contentType string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(fields); i += 2 {
		if err := w.WriteField(fields[i], fields[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	f, err := w.CreateFormFile("file", "a.wav")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(f, recording)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.Bytes()
}

// fieldsOf reads a form by mime/multipart.
func fieldsOf(t testing.TB, a fleet.Assignment) map[string]string {
	t.Helper()
	_, p, err := mime.ParseMediaType(a.ContentType)
	if err != nil {
		t.Fatal(err)
	}
	r := multipart.NewReader(bytes.NewReader(a.Body), p["boundary"])
	m := map[string]string{}
	for {
		part, err := r.NextRawPart()
		if err == io.EOF {
			return m
		}
		if err != nil {
			t.Fatalf("%v: %q", err, a.Body)
		}
		b, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := m[part.FormName()]; twice {
			t.Errorf("%s stands twice", part.FormName())
		}
		m[part.FormName()] = string(b)
	}
}

func TestTranscriptionIsAskedAsAStream(t *testing.T) {
	for _, x := range []struct {
		fields  []string
		streams bool
		model   string
	}{
		{nil, false, ""},
		{[]string{"model", "whisper-1", "language", "de"}, false, "served"},
		{[]string{"stream", "false", "model", "other"}, false, "other"},
		{[]string{"stream", "true"}, true, ""},
	} {
		typ, body := formOf(t, x.fields...)
		keep := bytes.Clone(body)
		j, err := Parse(audioPath, body, Options{ContentType: typ, Aliases: map[string]string{"whisper-1": "served"}})
		if err != nil {
			t.Fatal(err)
		}
		if j.Streams() != x.streams || j.Want().Model != x.model {
			t.Errorf("%v: streams %t, model %q", x.fields, j.Streams(), j.Want().Model)
		}
		a, err := j.Request(nodeA)
		if err != nil {
			t.Fatal(err)
		}
		got := fieldsOf(t, a)
		if got["stream"] != "true" || got["file"] != recording || got["model"] != x.model || a.Path != audioPath {
			t.Errorf("%v: asked %s %v", x.fields, a.Path, got)
		}
		if !bytes.Equal(keep, body) {
			t.Error("the client's body was changed")
		}
	}
}

func TestFormsThatAreNone(t *testing.T) {
	typ, body := formOf(t, "model", "m")
	for name, x := range map[string]struct{ typ, body string }{
		"JSON":        {"application/json", "{}"},
		"no boundary": {"multipart/form-data", string(body)},
		"nothing":     {typ, ""},
		"no end":      {typ, string(body[:len(body)-8])},
		"no head":     {"multipart/form-data; boundary=x", "--x\r\nfoo\r\n--x--\r\n"},
		"rubbish":     {typ, "hello"},
	} {
		_, err := Parse(audioPath, []byte(x.body), Options{ContentType: x.typ})
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 {
			t.Errorf("%s: got %v, want 400", name, err)
		}
	}
	twice, body := formOf(t, "model", "m", "model", "n")
	if _, err := Parse(audioPath, body, Options{ContentType: twice}); err == nil {
		t.Error("a model that stands twice was taken")
	}
}

const (
	heardPart = `{"type":"transcript.text.delta","delta":"Guten "}`
	heardMore = `{"type":"transcript.text.delta","delta":"Tag"}`
	heardAll  = `{"type":"transcript.text.done","text":"Guten Tag","usage":{"type":"tokens","input_tokens":9,"output_tokens":3,"total_tokens":12}}`
)

func TestTranscriptionAsAStreamAndWhole(t *testing.T) {
	for _, streams := range []string{"true", "false"} {
		typ, body := formOf(t, "stream", streams)
		o := Options{ContentType: typ}
		j, err := Parse(audioPath, body, o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Request(nodeA); err != nil {
			t.Fatal(err)
		}
		out := feed(t, j, []string{heardPart})
		n, err := j.Needs()
		if streams == "true" {
			// After the first segment nobody goes on.
			if r, ok := errors.AsType[*fleet.RequestError](err); !ok || r.Reason != fleet.ReasonLost {
				t.Errorf("Needs = %+v, %v", n, err)
			}
		} else if err != nil || n != (fleet.Needs{}) {
			t.Errorf("whole: Needs = %+v, %v, want anybody", n, err)
		} else if _, err := j.Request(nodeB); err != nil {
			t.Errorf("whole: %v", err)
		} else {
			out = feed(t, j, []string{heardPart})
		}
		out += feed(t, j, []string{heardMore, heardAll}) + string(j.End(nil))
		want := heardAll
		if streams == "true" {
			want = "data: " + strings.Join([]string{heardPart, heardMore, heardAll, "[DONE]"}, "\n\ndata: ") + "\n\n"
		}
		if out != want {
			t.Errorf("stream %s:\n got %s\nwant %s", streams, out, want)
		}
	}
}

func FuzzForm(f *testing.F) {
	typ, body := formOf(f, "model", "m", "stream", "true")
	f.Add(typ, body)
	f.Add("multipart/form-data; boundary=x", []byte("pre\r\n--x \t\r\nContent-Disposition: form-data; name=stream\r\n\r\n\r\n--x\r\n\r\n\r\n\r\n--x--"))
	f.Add("multipart/form-data; boundary=x", []byte("--x--"))
	f.Fuzz(func(t *testing.T, typ string, body []byte) {
		j, err := Parse(audioPath, body, Options{ContentType: typ})
		if err != nil {
			return
		}
		a, err := j.Request(nodeA)
		if err != nil {
			t.Fatal(err)
		}
		// What was asked reads as a form that streams.
		again, err := Parse(audioPath, a.Body, Options{ContentType: a.ContentType})
		if err != nil || !again.Streams() || again.Want().Model != j.Want().Model {
			t.Fatalf("%v: %q became %q", err, body, a.Body)
		}
	})
}
