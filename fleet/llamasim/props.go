package llamasim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// buildInfo is the version the captures are of.
const buildInfo = "b1-80fb11a"

// modelsDir is where a router says its models are.
const modelsDir = "/models"

func modelPath(o Options) string { return o.folder + o.Model + ".gguf" }

// timings is what the real server measures of a generation (section 1.10). Rates
// leave out the first token.
type timings struct {
	CacheN              int     `json:"cache_n"`
	PromptN             int     `json:"prompt_n"`
	PromptMS            float64 `json:"prompt_ms"`
	PromptPerTokenMS    float64 `json:"prompt_per_token_ms"`
	PromptPerSecond     float64 `json:"prompt_per_second"`
	PredictedN          int     `json:"predicted_n"`
	PredictedMS         float64 `json:"predicted_ms"`
	PredictedPerTokenMS float64 `json:"predicted_per_token_ms"`
	PredictedPerSecond  float64 `json:"predicted_per_second"`
}

// object is the timings as a server of some version writes them.
func (t timings) object(can features) any {
	if can.cacheInTimings {
		return t
	}
	raw := object{}
	_ = json.Unmarshal(encode(t), &raw)
	delete(raw, "cache_n")
	return raw
}

func (g *gen) timings() timings {
	t := timings{CacheN: g.cached, PromptN: len(g.job.ids) - g.cached, PredictedN: len(g.ids)}
	t.PromptMS = max(milliseconds(g.promptTime), 0.001)
	t.PredictedMS = max(milliseconds(g.decodeTime), 0.001)
	t.PromptPerTokenMS = t.PromptMS / float64(t.PromptN)
	t.PromptPerSecond = 1000 / t.PromptPerTokenMS
	if rest := float64(t.PredictedN - 1); rest > 0 {
		t.PredictedPerTokenMS = t.PredictedMS / rest
		t.PredictedPerSecond = 1000 / t.PredictedPerTokenMS
	}
	return t
}

func (g *gen) usage() fieldList {
	prompt, n := len(g.job.ids), len(g.ids)
	usage := fieldList{{"completion_tokens", n}, {"prompt_tokens", prompt}, {"total_tokens", prompt + n}}
	if g.can.cachedInUsage {
		usage = append(usage, field{"prompt_tokens_details", fieldList{{"cached_tokens", g.cached}}})
	}
	return usage
}

// models is /v1/models in single mode (P03).
func (in *instance) models() fieldList {
	return fieldList{
		{"models", []fieldList{{
			{"name", in.o.Model},
			{"model", in.o.Model},
			{"modified_at", ""},
			{"size", ""},
			{"digest", ""},
			{"type", "model"},
			{"description", ""},
			{"tags", []string{""}},
			{"capabilities", []string{"completion"}},
			{"parameters", ""},
			{"details", fieldList{
				{"parent_model", ""},
				{"format", "gguf"},
				{"family", ""},
				{"families", []string{""}},
				{"parameter_size", ""},
				{"quantization_level", ""},
			}},
		}}},
		{"object", "list"},
		{"data", []fieldList{modelEntry(in.o, in.can)}},
	}
}

// modelEntry is a model that is loaded.
func modelEntry(o Options, can features) fieldList {
	return fieldList{
		{"id", o.Model},
		{"aliases", append([]string{o.Model}, o.Aliases...)},
		{"tags", []string{}},
		{"object", "model"},
		{"created", time.Now().Unix()},
		{"owned_by", "llamacpp"},
		{"meta", modelMeta(o, can)},
	}
}

// modelMeta has a vocab_type that is a bool by mistake, on older servers a number,
// and there no context.
func modelMeta(o Options, can features) fieldList {
	m := fieldList{{"vocab_type", true}, {"n_vocab", vocabularyLen}, {"n_ctx", o.Context}}
	if !can.contextMeta {
		m = fieldList{{"vocab_type", 2}, {"n_vocab", vocabularyLen}}
	}
	m = append(m, fieldList{{"n_ctx_train", 1 << 20}, {"n_embd", vectorLength}, {"n_params", 211904}, {"size", 847616}}...)
	if can.contextMeta {
		m = append(m, field{"ftype", "all F32"})
	}
	return m
}

func (in *instance) props() fieldList {
	template := chatTemplate
	if in.o.Thinking {
		template = thinkTemplate
	}
	can := in.o.Thinking
	return fieldList{
		{"default_generation_settings", fieldList{
			{"params", settings(&request{limit: -1}, "none", false)},
			{"n_ctx", in.o.Context},
		}},
		{"total_slots", in.o.Slots},
		{"model_alias", in.o.Model},
		{"model_ftype", "all F32"},
		{"model_path", modelPath(in.o)},
		{"modalities", fieldList{{"vision", in.o.Vision}, {"video", false}, {"audio", in.o.Audio}}},
		{"media_marker", in.mediaMarker},
		{"endpoint_slots", !in.o.NoSlots && in.can.slots},
		{"endpoint_props", false},
		{"endpoint_metrics", !in.o.NoMetrics},
		{"ui", true},
		{"ui_settings", fieldList{}},
		{"chat_template", template},
		{"chat_template_caps", fieldList{
			{"supports_object_arguments", can},
			{"supports_parallel_tool_calls", can},
			{"supports_preserve_reasoning", false},
			{"supports_reasoning_effort", false},
			{"supports_string_content", true},
			{"supports_system_role", true},
			{"supports_tool_calls", can},
			{"supports_tools", can},
			{"supports_typed_content", false},
		}},
		{"bos_token", markBOS},
		{"eos_token", markEnd},
		{"build_info", buildInfo},
		{"is_sleeping", in.isAsleep()},
		{"cors_proxy_enabled", false},
	}
}

// settings are a request's sampling parameters, nearly all of which this model has
// no use for.
func settings(q *request, reasoning string, full bool) fieldList {
	number := func(name string, standard float64) float64 {
		_ = get(q.fields, name, &standard)
		return standard
	}
	l := fieldList{
		{"seed", number("seed", 4294967295)},
		{"temperature", number("temperature", 0.800000011920929)},
		{"dynatemp_range", 0.0},
		{"dynatemp_exponent", 1.0},
		{"top_k", number("top_k", 40)},
		{"top_p", number("top_p", 0.949999988079071)},
		{"min_p", number("min_p", 0.05000000074505806)},
		{"top_n_sigma", -1.0},
		{"xtc_probability", 0.0},
		{"xtc_threshold", 0.10000000149011612},
		{"typical_p", 1.0},
		{"repeat_last_n", 64},
		{"repeat_penalty", number("repeat_penalty", 1)},
		{"presence_penalty", number("presence_penalty", 0)},
		{"frequency_penalty", number("frequency_penalty", 0)},
		{"dry_multiplier", 0.0},
		{"dry_base", 1.75},
		{"dry_allowed_length", 2},
		{"dry_penalty_last_n", 64},
	}
	if full {
		l = append(l, field{"dry_sequence_breakers", []string{"\n", ":", "\"", "*"}})
	}
	l = append(l, fieldList{
		{"mirostat", 0},
		{"mirostat_tau", 5.0},
		{"mirostat_eta", 0.10000000149011612},
		{"adaptive_target", -1.0},
		{"adaptive_decay", 0.8999999761581421},
	}...)
	if full {
		l = append(l, field{"stop", append([]string{}, q.stop...)})
	}
	l = append(l, fieldList{
		{"max_tokens", q.limit},
		{"n_predict", q.limit},
		{"n_keep", 0},
		{"n_discard", 0},
		{"ignore_eos", q.ignoreEOS},
		{"stream", q.stream},
	}...)
	if full {
		l = append(l, field{"logit_bias", []int{}})
	}
	l = append(l, field{"n_probs", q.topLogprobs}, field{"min_keep", 0})
	if full {
		l = append(l, fieldList{
			{"grammar", ""},
			{"grammar_lazy", false},
			{"grammar_triggers", []int{}},
			{"preserved_tokens", []int{}},
		}...)
	}
	return append(l, fieldList{
		{"chat_format", "Content-only"},
		{"reasoning_format", reasoning},
		{"reasoning_in_content", false},
		{"generation_prompt", ""},
		{"samplers", []string{"penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"}},
		{"speculative.types", "none"},
		{"timings_per_token", q.timingsPerToken},
		{"post_sampling_probs", false},
		{"backend_sampling", false},
		{"lora", []int{}},
	}...)
}

// serveSlots is /slots (P06 to P08).
func (in *instance) serveSlots(w http.ResponseWriter, r *http.Request) {
	if in.o.NoSlots || !in.can.slots {
		writeError(w, notSupported("This server does not support slots endpoint. Start it with `--slots`"))
		return
	}
	if !in.use(r.Context()) {
		panic(http.ErrAbortHandler)
	}
	defer in.unuse()
	// A poll is a result like any other: who polls often hides from the server that
	// clients left (section 3.5).
	in.heard()
	in.mu.Lock()
	list := []fieldList{}
	free := false
	for _, s := range in.slots {
		free = free || !s.busy
		l := fieldList{{"id", s.id}, {"n_ctx", in.o.Context}, {"speculative", false}, {"is_processing", s.busy}}
		if s.params != nil {
			l = append(l, field{"id_task", s.task})
			if in.can.slotTokens {
				l = append(l, fieldList{
					{"n_prompt_tokens", s.promptN},
					{"n_prompt_tokens_processed", s.promptProcessed},
					{"n_prompt_tokens_cache", s.promptFromCache},
				}...)
			}
			l = append(l, fieldList{
				{"params", s.params},
				{"next_token", []fieldList{{
					{"has_next_token", s.busy},
					{"has_new_line", s.newline},
					{"n_remain", s.remains},
					{"n_decoded", s.decoded},
				}}},
			}...)
		}
		list = append(list, l)
	}
	in.mu.Unlock()
	if r.URL.Query().Get("fail_on_no_slot") != "" && !free {
		writeError(w, &apiError{status: http.StatusServiceUnavailable, message: "no slot available", kind: "unavailable_error"})
		return
	}
	writeJSON(w, http.StatusOK, list)
}

// counters are those of /metrics. Guarded by instance.mu.
type counters struct {
	promptTokens, cachedTokens int
	promptTime                 time.Duration
	predicted                  int
	predictedTime              time.Duration
	decodes, busySlots         int
	longest                    int

	// Since the last scrape: the two gauges of speed are averages over that time.
	bucketPrompt        int
	bucketPromptTime    time.Duration
	bucketPredicted     int
	bucketPredictedTime time.Duration
}

func (c *counters) decoded(slots int) {
	c.decodes++
	c.busySlots += slots
}

// prompt counts a prompt when all of it is taken in, not before (section 1.6).
func (c *counters) prompt(g *gen, total int) {
	c.promptTokens += total - g.cached
	c.cachedTokens += g.cached
	c.promptTime += g.promptTime
	c.bucketPrompt += total - g.cached
	c.bucketPromptTime += g.promptTime
	c.longest = max(c.longest, total)
}

// released counts the tokens of a generation when its slot is free (section 1.6).
func (c *counters) released(g *gen) {
	c.predicted += len(g.ids)
	c.predictedTime += g.decodeTime
	c.bucketPredicted += len(g.ids)
	c.bucketPredictedTime += g.decodeTime
	c.longest = max(c.longest, len(g.slot.cached))
}

// metrics is the text of /metrics (P10).
func (in *instance) metrics() string {
	active, queued := in.load()
	in.heard()
	in.mu.Lock()
	c := in.counters
	in.counters.bucketPrompt, in.counters.bucketPromptTime = 0, 0
	in.counters.bucketPredicted, in.counters.bucketPredictedTime = 0, 0
	in.mu.Unlock()
	rate := func(n int, d time.Duration) float64 {
		if n == 0 || d <= 0 {
			return 0
		}
		return float64(n) / d.Seconds()
	}
	busy := 0.0
	if c.decodes > 0 {
		busy = float64(c.busySlots) / float64(c.decodes)
	}
	var b strings.Builder
	metric := func(kind, name, help string, v float64) {
		fmt.Fprintf(&b, "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s %s\nllamacpp:%s %.6g\n", name, help, name, kind, name, v)
	}
	metric("counter", "prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", float64(c.promptTokens))
	metric("counter", "prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", float64(c.cachedTokens))
	metric("counter", "prompt_seconds_total", "Total time spent processing prompts", c.promptTime.Seconds())
	metric("counter", "tokens_predicted_total", "Number of generation tokens processed", float64(c.predicted))
	metric("counter", "tokens_predicted_seconds_total", "Total time spent generating tokens", c.predictedTime.Seconds())
	metric("counter", "n_decode_total", "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding", float64(c.decodes))
	metric("counter", "n_tokens_max", "Largest observed sequence length (prompt + generation)", float64(c.longest))
	metric("counter", "spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated", 0)
	metric("counter", "spec_decode_num_accepted_tokens_total", "Speculative: Total draft tokens accepted by the target model", 0)
	metric("counter", "spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps", 0)
	metric("gauge", "prompt_tokens_seconds", "Average prompt throughput in tokens/s", rate(c.bucketPrompt, c.bucketPromptTime))
	metric("gauge", "predicted_tokens_seconds", "Average generation throughput in tokens/s", rate(c.bucketPredicted, c.bucketPredictedTime))
	metric("gauge", "requests_processing", "Number of requests processing", float64(active))
	metric("gauge", "requests_deferred", "Number of requests deferred", float64(queued))
	metric("gauge", "n_busy_slots_per_decode", "Average number of busy slots per llama_decode() call", busy)
	return b.String()
}
