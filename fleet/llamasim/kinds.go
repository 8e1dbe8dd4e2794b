package llamasim

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
)

// What only some servers do (section 1.13): embeddings, ranking, filling in, hearing.

// vectorLength is the width of the stand-in's model.
const vectorLength = 64

// microBatch is the most tokens that an embedding may have (n_ubatch).
const microBatch = 512

// embed is a unit vector that depends on every token.
func embed(tokens []token) []float64 {
	s := newState()
	for _, t := range tokens {
		s.write(t.text)
	}
	v := make([]float64, vectorLength)
	sum := 0.0
	for i := range v {
		v[i] = float64(mix(s.h+uint64(i))%20001)/10000 - 1
		sum += v[i] * v[i]
	}
	for i := range v {
		v[i] /= math.Sqrt(sum)
	}
	return v
}

// inSlot runs a prompt that generates nothing through a slot, with the queue, the log
// and the time that takes.
func (in *instance) inSlot(w http.ResponseWriter, r *http.Request, tokens []token) error {
	q := &request{n: 1, slot: -1, limit: 0, cachePrompt: false}
	rp := in.newReply(w, r, q)
	defer rp.close()
	j := in.newJob(q, "", tokens, nil, nil)
	if err := in.acquire(rp, j); err != nil {
		return err
	}
	defer in.heard()
	defer in.release(j.gens[0])
	if len(tokens) > microBatch {
		return in.taskFailed(j, serverError(fmt.Sprintf(
			"input (%d tokens) is too large to process. increase the physical batch size (current batch size: %d)", len(tokens), microBatch)))
	}
	return in.prefill(rp, j)
}

// inputs reads texts or ids under one of two keys.
func inputs(fields object) ([]textPrompt, error) {
	raw := fields["input"]
	if raw == nil {
		raw = fields["content"]
	}
	if raw == nil {
		return nil, badRequest("\"input\" or \"content\" must be provided")
	}
	return parsePrompts(object{"prompt": raw})
}

func (in *instance) vectors(w http.ResponseWriter, r *http.Request, body []byte) (fields object, vectors [][]float64, total int, err error) {
	in.server.asked(body)
	if fields, err = parseBody(body); err != nil {
		return nil, nil, 0, err
	}
	list, err := inputs(fields)
	if err != nil {
		return nil, nil, 0, err
	}
	for _, p := range list {
		if err := in.inSlot(w, r, p.tokens); err != nil {
			return nil, nil, 0, in.answerable(err)
		}
		total += len(p.tokens)
		vectors = append(vectors, embed(p.tokens))
	}
	return fields, vectors, total, nil
}

// answerable ends a request that nobody waits for.
func (in *instance) answerable(err error) error {
	if errors.Is(err, errClientGone) {
		panic(http.ErrAbortHandler)
	}
	return err
}

func (in *instance) serveEmbeddings(w http.ResponseWriter, r *http.Request, body []byte) error {
	fields, vectors, total, err := in.vectors(w, r, body)
	if err != nil {
		return err
	}
	data := []fieldList{}
	for i, v := range vectors {
		one := fieldList{{"embedding", v}, {"index", i}, {"object", "embedding"}}
		if textOf(fields["encoding_format"]) == "base64" {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(x)))
			}
			one = fieldList{
				{"embedding", base64.StdEncoding.EncodeToString(raw)}, {"index", i}, {"object", "embedding"}, {"encoding_format", "base64"},
			}
		}
		data = append(data, one)
	}
	writeJSON(w, http.StatusOK, fieldList{
		{"model", in.echoedModel(fields)},
		{"object", "list"},
		{"usage", fieldList{{"prompt_tokens", total}, {"total_tokens", total}}},
		{"data", data},
	})
	return nil
}

// echoedModel is what was asked for: these routes still say it (section 1.2).
func (in *instance) echoedModel(fields object) string {
	if name := textOf(fields["model"]); name != "" {
		return name
	}
	return in.o.Model
}

func (in *instance) serveNativeEmbeddings(w http.ResponseWriter, r *http.Request, body []byte) error {
	_, vectors, _, err := in.vectors(w, r, body)
	if err != nil {
		return err
	}
	list := []fieldList{}
	for i, v := range vectors {
		list = append(list, fieldList{{"index", i}, {"embedding", [][]float64{v}}})
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// serveRerank answers in Jina's form, or, when texts are given, in TEI's (P53).
func (in *instance) serveRerank(w http.ResponseWriter, r *http.Request, body []byte) error {
	in.server.asked(body)
	fields, err := parseBody(body)
	if err != nil {
		return err
	}
	texts, tei := fields["texts"]
	if !tei {
		texts = fields["documents"]
	}
	var documents []string
	query := fields["query"]
	switch {
	case query == nil || kindOf(query) != "string":
		return badRequest("\"query\" must be provided")
	case json.Unmarshal(texts, &documents) != nil || len(documents) == 0:
		return badRequest("\"documents\" must be a non-empty string array")
	}
	type rank struct {
		index int
		score float64
	}
	var ranks []rank
	total := 0
	for i, d := range documents {
		tokens := tokenize(markBOS + textOf(query) + markEnd + d)
		if err := in.inSlot(w, r, tokens); err != nil {
			return in.answerable(err)
		}
		total += len(tokens)
		ranks = append(ranks, rank{i, 10 * embed(tokens)[0]})
	}
	slices.SortStableFunc(ranks, func(a, b rank) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return 0
	})
	top := len(ranks)
	if err := get(fields, "top_n", &top); err != nil {
		return err
	}
	results := []fieldList{}
	for _, k := range ranks[:min(max(top, 0), len(ranks))] {
		if tei {
			results = append(results, fieldList{{"index", k.index}, {"score", k.score}})
		} else {
			results = append(results, fieldList{{"index", k.index}, {"relevance_score", k.score}})
		}
	}
	if tei {
		writeJSON(w, http.StatusOK, results)
		return nil
	}
	writeJSON(w, http.StatusOK, fieldList{
		{"model", in.echoedModel(fields)},
		{"object", "list"},
		{"usage", fieldList{{"prompt_tokens", total}, {"total_tokens", total}}},
		{"results", results},
	})
	return nil
}

// serveInfill is a native completion of what stands around a gap.
func (in *instance) serveInfill(w http.ResponseWriter, r *http.Request, body []byte) error {
	fields, err := parseBody(body)
	if err != nil {
		return err
	}
	for _, name := range []string{"input_prefix", "input_suffix"} {
		if raw := fields[name]; raw == nil || kindOf(raw) != "string" {
			return badRequest("\"" + name + "\" is required")
		}
	}
	var extra []struct {
		Text     string `json:"text"`
		Filename string `json:"filename"`
	}
	_ = json.Unmarshal(fields["input_extra"], &extra)
	var b strings.Builder
	for _, e := range extra {
		b.WriteString("<file>" + e.Filename + "\n" + e.Text + "\n")
	}
	b.WriteString("<suffix>" + textOf(fields["input_suffix"]) + "<prefix>" + textOf(fields["input_prefix"]) + "<middle>" + textOf(fields["prompt"]))
	fields["prompt"] = encode(b.String())
	return in.serveText(w, r, encode(fields), false)
}

// serveTranscription hears a file: as many words as it has bytes by the thousand.
func (in *instance) serveTranscription(w http.ResponseWriter, r *http.Request, body []byte) error {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return badRequest("No input file found for transcription")
	}
	form := map[string]string{}
	for parts := multipart.NewReader(strings.NewReader(string(body)), params["boundary"]); ; {
		p, err := parts.NextPart()
		if err != nil {
			break
		}
		b, err := io.ReadAll(p)
		if err != nil {
			return badRequest("No input file found for transcription")
		}
		form[p.FormName()] = string(b)
	}
	if form["file"] == "" {
		return badRequest("No input file found for transcription")
	}
	if f := form["response_format"]; f != "" && f != "json" {
		return badRequest("Only 'json' response_format is supported for transcription")
	}
	fields := object{
		"messages": encode([]fieldList{{{"role", "user"}, {"content", []fieldList{
			{{"type", "input_audio"}, {"input_audio", fieldList{{"data", form["file"]}}}},
			{{"type", "text"}, {"text", "Transcribe." + form["prompt"]}},
		}}}}),
		"max_tokens": encode(1 + len(form["file"])/1000),
		"ignore_eos": json.RawMessage("true"),
		"stream":     encode(form["stream"] == "true"),
	}
	if form["model"] != "" {
		fields["model"] = encode(form["model"])
	}
	return in.converse(surface{asItIs, newTranscript})(w, r, encode(fields))
}

// transcript words an answer as OpenAI's transcriptions do.
type transcript struct{ *chat }

func newTranscript(c *chat) dialect { return transcript{c} }

func (t transcript) progress(progress) error         { return nil }
func (t transcript) begin(*gen, *answer, step) error { return nil }
func (t transcript) end() error                      { return nil }
func (t transcript) failure(err *apiError) []byte    { return eventOf("", err.object()) }

func (t transcript) delta(_ *gen, _ *answer, _ step, d delta) error {
	return t.rp.event(fieldList{{"type", "transcript.text.delta"}, {"delta", d.reasoning + d.content}})
}

func (t transcript) finish(g *gen, a *answer) error {
	return t.rp.event(fieldList{
		{"type", "transcript.text.done"},
		{"text", a.reasoning.String() + a.content.String()},
		{"usage", append(fieldList{{"type", "tokens"}}, responsesUsage(g)...)},
	})
}

func (t transcript) body() fieldList {
	a := t.answers[0]
	return fieldList{{"text", a.reasoning.String() + a.content.String()}}
}
