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
type Limit struct {
	Server, Name string
	Key          func(*http.Request) string
	Timeout      time.Duration
	FailOpen     bool
}

// Wrap limits the requests to a handler.
func (l Limit) Wrap(next http.Handler) http.Handler {
	client := http.Client{Timeout: cmp.Or(l.Timeout, 100*time.Millisecond)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var told map[string]any
		id := make([]byte, 16)
		rand.Read(id)
		body, _ := json.Marshal(map[string]string{"limit": l.Name, "key": l.Key(r), "id": fmt.Sprintf("%x", id)})
		answer, err := client.Post(l.Server+"/v1/acquire", "application/json", bytes.NewReader(body))
		if err != nil && !os.IsTimeout(err) {
			// The answer was lost with its connection. With the same id the request is counted once.
			answer, err = client.Post(l.Server+"/v1/acquire", "application/json", bytes.NewReader(body))
		}
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
			next.ServeHTTP(w, r)
			return
		}
		w.Header()["Content-Type"], w.Header()["Retry-After"] = []string{"application/json"}, answer.Header["Retry-After"]
		w.WriteHeader(answer.StatusCode)
		json.NewEncoder(w).Encode(map[string]any{"reason": told["reason"]})
	})
}
