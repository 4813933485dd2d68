// Package tidegate limits the requests of net/http by a Tidegate server:
//
//	limited := tidegate.Limit{Server: "http://127.0.0.1:8080", Name: "per-user", Key: user, FailOpen: true}
//	http.Handle("/", limited.Wrap(handler))
package tidegate

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"
)

// Limit is a limit of a server. A token goes into the URL, as in http://name:TOKEN@127.0.0.1:8080. Timeout is 100 ms if it is zero.
// With Counts, only responses whose status it accepts count, such as failed logins.
type Limit struct {
	Server, Name string
	Key          func(*http.Request) string
	Timeout      time.Duration
	FailOpen     bool
	Counts       func(status int) bool
}

// watched knows the status of a response.
type watched struct {
	http.ResponseWriter
	status int
}

func (w *watched) WriteHeader(status int) {
	// An informational response comes before the response.
	if status >= 200 && w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Write(body []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	return w.ResponseWriter.Write(body)
}

// Unwrap is for http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Wrap limits the requests to a handler.
func (l Limit) Wrap(next http.Handler) http.Handler {
	client := http.Client{Timeout: cmp.Or(l.Timeout, 100*time.Millisecond)}
	post := func(path string, question map[string]string) (*http.Response, error) {
		body, _ := json.Marshal(question)
		answer, err := client.Post(l.Server+path, "application/json", bytes.NewReader(body))
		if err != nil && !os.IsTimeout(err) {
			// The answer was lost with its connection. With the same id the request is counted once.
			answer, err = client.Post(l.Server+path, "application/json", bytes.NewReader(body))
		}
		return answer, err
	}
	path := "/v1/acquire"
	if l.Counts != nil {
		// A reservation counts at once, so requests that run at the same time do not exceed the limit.
		path = "/v1/reserve"
	}
	giveBack := func(id string) {
		answer, err := post("/v1/cancel", map[string]string{"id": id})
		if err != nil || answer.StatusCode != 200 {
			log.Printf("tidegate: the request stays counted: %v %v", answer, err)
		}
		if err == nil {
			answer.Body.Close()
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var told map[string]any
		id := make([]byte, 16)
		rand.Read(id)
		answer, err := post(path, map[string]string{"limit": l.Name, "key": l.Key(r), "id": fmt.Sprintf("%x", id)})
		if err == nil {
			err = json.NewDecoder(answer.Body).Decode(&told)
			answer.Body.Close()
		}
		if err == nil && answer.StatusCode/100 == 4 && answer.StatusCode != 429 {
			// A limit's name, the token or a right is wrong: the text says what to do.
			log.Printf("tidegate: %s: %v", answer.Status, told["detail"])
			http.Error(w, "limits are misconfigured", http.StatusInternalServerError)
			return
		}
		if err != nil || told["allowed"] == nil {
			log.Printf("tidegate: no decision: %v %v", err, told["detail"])
			answer, told = &http.Response{StatusCode: 503}, map[string]any{"allowed": l.FailOpen, "reason": "no decision"}
		}
		if told["allowed"] == true {
			delay, _ := told["delay_ms"].(float64)
			time.Sleep(time.Duration(delay) * time.Millisecond)
			reserved, _ := told["id"].(string)
			if l.Counts == nil || reserved == "" {
				next.ServeHTTP(w, r)
				return
			}
			seen := &watched{ResponseWriter: w}
			status := http.StatusInternalServerError // of a panic
			defer func() {
				if !l.Counts(status) {
					giveBack(reserved)
				}
			}()
			next.ServeHTTP(seen, r)
			status = cmp.Or(seen.status, http.StatusOK)
			return
		}
		w.Header()["Content-Type"], w.Header()["Retry-After"] = []string{"application/json"}, answer.Header["Retry-After"]
		w.WriteHeader(answer.StatusCode)
		json.NewEncoder(w).Encode(map[string]any{"reason": told["reason"]})
	})
}
