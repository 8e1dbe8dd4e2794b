package llamasim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// apiError is an answer of the server's own: {"error":{...}} with its status.
type apiError struct {
	status  int
	message string
	kind    string
	extra   []field
}

func (e *apiError) Error() string { return e.message }

func (e *apiError) object() fieldList {
	inner := fieldList{{"code", e.status}, {"message", e.message}, {"type", e.kind}}
	return fieldList{{"error", append(inner, e.extra...)}}
}

func badRequest(text string) *apiError {
	return &apiError{status: http.StatusBadRequest, message: text, kind: "invalid_request_error"}
}

func serverError(text string) *apiError {
	return &apiError{status: http.StatusInternalServerError, message: text, kind: "server_error"}
}

// parseError words a JSON syntax error as the real server's library does; it comes
// back as a 500 although the client is at fault (section 5.2).
func parseError(body []byte, err error) *apiError {
	column, why := len(body)+1, "unexpected end of input; expected '[', '{', or a literal"
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && int(syntax.Offset) <= len(body) && !strings.Contains(syntax.Error(), "unexpected end") {
		column, why = int(syntax.Offset), "invalid literal; last read: '"+string(body[max(0, syntax.Offset-1):syntax.Offset])+"'"
	}
	return serverError(fmt.Sprintf("[json.exception.parse_error.101] parse error at line 1, column %d: syntax error while parsing value - %s", column, why))
}

func (in *instance) tooLong(n int) *apiError {
	if !in.can.typedLength {
		return badRequest("the request exceeds the available context size. try increasing the context size or enable context shift")
	}
	return &apiError{
		status:  http.StatusBadRequest,
		message: fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens), try increasing it", n, in.o.Context),
		kind:    "exceed_context_size_error",
		extra:   []field{{"n_prompt_tokens", n}, {"n_ctx", in.o.Context}},
	}
}

// taskFailed logs the error of a task.
func (in *instance) taskFailed(j *job, err *apiError) error {
	in.log.write('E', "srv    send_error: task id = %d, error: %s", j.gens[0].task, err.message)
	return &taskError{err}
}

// taskError was logged where it arose, the others are where they are answered.
type taskError struct{ *apiError }

func (e *taskError) Unwrap() error { return e.apiError }

// failed logs a fault that the real server would log.
func (in *instance) failed(j *job, err *faultError) error {
	if a := err.answer(); a != nil {
		_ = in.taskFailed(j, a)
	}
	return err
}
