package llamasim

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
)

func TestEmbeddingsAreOfTheText(t *testing.T) {
	s := start(t, Options{Embeddings: true})
	var got struct {
		Model string
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
		Data []struct {
			Index     int
			Embedding []float64
		}
	}
	decode(t, post(t.Context(), t, s.URL()+"/v1/embeddings", `{"model":"e1","input":["a","bc","a"]}`), &got)
	if got.Model != "e1" || len(got.Data) != 3 || got.Usage.Prompt != 6 || got.Data[2].Index != 2 {
		t.Fatalf("got %+v", got)
	}
	if a, b := fmt.Sprint(got.Data[0].Embedding), fmt.Sprint(got.Data[1].Embedding); a == b || a != fmt.Sprint(got.Data[2].Embedding) {
		t.Error("equal texts must have equal vectors, others not")
	}
	length := 0.0
	for _, x := range got.Data[0].Embedding {
		length += x * x
	}
	if math.Abs(length-1) > 1e-9 {
		t.Errorf("the vector's length is %v, want 1", length)
	}
	var packed struct{ Data []struct{ Embedding string } }
	decode(t, post(t.Context(), t, s.URL()+"/v1/embeddings", `{"input":"a","encoding_format":"base64"}`), &packed)
	if raw, err := base64.StdEncoding.DecodeString(packed.Data[0].Embedding); err != nil || len(raw) != 4*vectorLength {
		t.Errorf("base64: got %d bytes, %v", len(raw), err)
	}
	var native []struct{ Embedding [][]float64 }
	decode(t, post(t.Context(), t, s.URL()+"/embedding", `{"content":"a"}`), &native)
	if len(native) != 1 || fmt.Sprint(native[0].Embedding[0]) != fmt.Sprint(got.Data[0].Embedding) {
		t.Errorf("native: got %v", native)
	}
	resp := post(t.Context(), t, s.URL()+"/v1/embeddings", js(t, dict{"input": strings.Repeat(" fox", 600)}))
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 500 || !strings.Contains(string(b), "input (601 tokens) is too large to process") {
		t.Errorf("too long: got %d %s", resp.StatusCode, b)
	}
	if st := s.Stats(); st.Active != 0 {
		t.Errorf("%d slots are taken", st.Active)
	}
}

func TestRerankSortsByScore(t *testing.T) {
	s := start(t, Options{Reranking: true})
	var jina struct {
		Results []struct {
			Index int
			Score float64 `json:"relevance_score"`
		}
	}
	decode(t, post(t.Context(), t, s.URL()+"/v1/rerank", `{"query":"q","documents":["a","b","c"],"top_n":2}`), &jina)
	if len(jina.Results) != 2 || jina.Results[0].Score < jina.Results[1].Score {
		t.Errorf("got %+v, want the best two in order", jina)
	}
	var tei []struct {
		Index int
		Score float64
	}
	decode(t, post(t.Context(), t, s.URL()+"/rerank", `{"query":"q","texts":["a","b","c"]}`), &tei)
	if len(tei) != 3 || tei[0].Index != jina.Results[0].Index || tei[0].Score != jina.Results[0].Score {
		t.Errorf("got %+v, want all of %+v", tei, jina)
	}
}

func TestInfillDependsOnBothSides(t *testing.T) {
	s := start(t, Options{Infill: true})
	answer := func(suffix string) string {
		return ask(t, s, "/infill", dict{"input_prefix": "func a() {", "input_suffix": suffix, "n_predict": 20}).content
	}
	if a, b := answer("}"), answer("}\n"); a == "" || a == b || a != answer("}") {
		t.Errorf("got %q and %q", a, b)
	}
	if got := post(t.Context(), t, s.URL()+"/infill", `{"input_prefix":"x"}`).StatusCode; got != http.StatusBadRequest {
		t.Errorf("without a suffix: got %d, want 400", got)
	}
}

func TestTranscriptionHearsTheFile(t *testing.T) {
	s := start(t, Options{Audio: true})
	hear := func(file, stream string) string {
		var form bytes.Buffer
		w := multipart.NewWriter(&form)
		part, _ := w.CreateFormFile("file", "a.wav")
		_, _ = part.Write([]byte(file))
		_ = w.WriteField("stream", stream)
		_ = w.Close()
		resp, err := client.Post(s.URL()+"/v1/audio/transcriptions", w.FormDataContentType(), &form)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("got %d %s, %v", resp.StatusCode, b, err)
		}
		return string(b)
	}
	one, other := hear(strings.Repeat("a", 9000), "false"), hear(strings.Repeat("b", 9000), "false")
	if one == other || !strings.HasPrefix(one, `{"text":"`) {
		t.Errorf("got %s and %s", one, other)
	}
	if st := hear(strings.Repeat("a", 9000), "true"); !strings.Contains(st, "transcript.text.delta") || !strings.Contains(st, `"type":"transcript.text.done",`+one[1:len(one)-1]) {
		t.Errorf("stream: got %s, want it to end with %s", st, one)
	}
}

func TestImagesTakeTokensAndAreLookedAt(t *testing.T) {
	s := start(t, Options{Vision: true})
	with := func(urls ...string) dict {
		parts := []dict{{"type": "text", "text": "what is it?"}}
		for _, u := range urls {
			parts = append(parts, dict{"type": "image_url", "image_url": dict{"url": u}})
		}
		return dict{"messages": []dict{{"role": "user", "content": parts}}, "max_tokens": 20, "stream_options": dict{"include_usage": true}}
	}
	length := func(st *stream) int { return st.events[len(st.events)-1].Usage.Prompt }
	none, one, other := ask(t, s, chatPath, with()), ask(t, s, chatPath, with("a")), ask(t, s, chatPath, with("b"))
	if one.content == other.content || one.content == none.content {
		t.Errorf("got %q of one image and %q of another, %q of none", one.content, other.content, none.content)
	}
	if got := length(one) - length(none); got != mediaTokens+1 { // and a newline
		t.Errorf("an image takes %d tokens, want %d", got, mediaTokens+1)
	}
	two := ask(t, s, chatPath, with("a", "b"))
	if got := length(two) - length(one); got != mediaTokens+1 {
		t.Errorf("the second takes %d tokens", got)
	}
	rest := ask(t, s, chatPath, continuation(with("a"), "", one.content[:8]))
	if whole := ask(t, s, chatPath, with("a")).content; !strings.HasPrefix(one.content[:8]+rest.content, whole) {
		t.Errorf("going on: got %q, want %q", one.content[:8]+rest.content, whole)
	}
}
