{{/* Labels of every object. Pods lack them: a new chart version alone must restart no pod. */}}
{{- define "sickbay.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sickbay
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What the names of objects begin with. */}}
{{- define "sickbay.fullname" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default "sickbay" -}}
{{- end }}

{{/* The image of a program: "sickbay.image" (list $ "sickbay-agent" DIGEST) */}}
{{- define "sickbay.image" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.image.repository }}{{ trimSuffix "/" . }}/{{ end -}}
{{- index . 1 -}}
{{- with index . 2 }}@{{ . }}{{ else }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* The address of the page: that of the alerts, or that of kubectl port-forward. */}}
{{- define "sickbay.page" -}}
{{- $page := dig "alerts" "page" "" (include "sickbay.aggregatorConfig" . | fromYaml) -}}
{{- default "https://localhost:8080" $page | trimSuffix "/" -}}
{{- end }}

{{/* The address before docs/ in the links of alerts: a value, or documentation_url. */}}
{{- define "sickbay.runbookPrefix" -}}
{{- $url := dig "documentation_url" "" (include "sickbay.aggregatorConfig" . | fromYaml) -}}
{{- default (and $url (printf "%s/" (trimSuffix "/" $url))) .Values.monitoring.rules.runbookPrefix -}}
{{- end }}

{{/* Replicas of the aggregator. */}}
{{- define "sickbay.replicas" -}}
{{- if kindIs "invalid" .Values.aggregator.replicas -}}
{{- ternary 3 1 (eq .Values.profile "large") -}}
{{- else -}}
{{- int .Values.aggregator.replicas -}}
{{- end -}}
{{- end }}

{{/* The aggregator's configuration: the shipped one, the values, and at last aggregator.config. */}}
{{- define "sickbay.aggregatorConfig" -}}
{{- $config := .Files.Get "files/aggregator.yaml" | fromYaml -}}
{{- $_ := set $config "mode" .Values.mode -}}
{{- if eq .Values.certificates.source "provided" -}}
{{- $tls := dict "cert_file" "/etc/sickbay-tls/tls.crt" "key_file" "/etc/sickbay-tls/tls.key" -}}
{{- $_ := set $config.listen "tls" $tls -}}
{{- $_ := set $config.replicas "ca_file" "/etc/sickbay-ca/ca.crt" -}}
{{- end -}}
{{- if .Values.history.database -}}
{{- $history := dict "database" .Values.history.database "password_file" "/etc/sickbay-history/password" -}}
{{- if .Values.history.verifyServer }}{{- $_ := set $history "ca_file" "/etc/sickbay-history/ca.crt" -}}{{ end -}}
{{- $_ := set $config "history" $history -}}
{{- end -}}
{{- $name := include "sickbay.fullname" . -}}
{{- if ne $name "sickbay" -}}
{{- $_ := set $config.replicas "domain" (printf "%s-aggregator" $name) -}}
{{- $_ := set $config.replicas "service_account" (printf "%s:%s-aggregator" .Release.Namespace $name) -}}
{{- $_ := set $config "identity" (dict "service_account" (printf "%s:%s-agent" .Release.Namespace $name)) -}}
{{- end -}}
{{- $given := deepCopy .Values.aggregator.config -}}
{{- include "sickbay.dropNulls" $given -}}
{{- mustMergeOverwrite $config $given | toYaml -}}
{{- end }}

{{/* Takes nulls out of a dictionary, in place: a key that is null is as one that was not given. */}}
{{- define "sickbay.dropNulls" -}}
{{- range $key, $value := . -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $ $key -}}
{{- else if kindIs "map" $value -}}
{{- include "sickbay.dropNulls" $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What the admission policy lets the aggregator change: by its configuration, and by the values. */}}
{{- define "sickbay.ownConditions" -}}
{{- $own := list "SickbayQuarantined" -}}
{{- range (include "sickbay.aggregatorConfig" . | fromYaml).conditions }}{{ $own = append $own .type }}{{ end -}}
{{- $repair := default dict (include "sickbay.aggregatorConfig" . | fromYaml).repair -}}
{{- if or (include "sickbay.startupTaint" .) (hasKey $repair "idle_nodes") }}{{ $own = append $own "SickbayTestPassed" }}{{ end -}}
{{- include "sickbay.celList" (concat $own .Values.admissionPolicies.conditions) -}}
{{- end }}

{{- define "sickbay.ownTaints" -}}
{{- $own := list "sickbay.dev/quarantine" -}}
{{- $taint := dig "marks" "taint" "key" "" (include "sickbay.aggregatorConfig" . | fromYaml) -}}
{{- if $taint }}{{ $own = append $own $taint }}{{ end -}}
{{- with include "sickbay.startupTaint" . }}{{ $own = append $own . }}{{ end -}}
{{- include "sickbay.celList" (concat $own .Values.admissionPolicies.taints) -}}
{{- end }}

{{/* The key of the taint that new nodes lose when they pass their test; empty: none is tested. */}}
{{- define "sickbay.startupTaint" -}}
{{- dig "repair" "new_nodes" "taint" "" (include "sickbay.aggregatorConfig" . | fromYaml) -}}
{{- end }}

{{- define "sickbay.ownNotices" -}}
{{- $own := list "cluster-autoscaler.kubernetes.io/scale-down-disabled" "karpenter.sh/do-not-disrupt" -}}
{{- $reason := dig "marks" "reason_annotation" "" (include "sickbay.aggregatorConfig" . | fromYaml) -}}
{{- if $reason }}{{ $own = append $own $reason }}{{ end -}}
{{- include "sickbay.celList" (concat $own .Values.admissionPolicies.annotations) -}}
{{- end }}

{{- define "sickbay.celList" -}}
['{{ join "', '" (uniq .) }}']
{{- end }}

{{/* The agent's configuration, as a dictionary in YAML. */}}
{{- define "sickbay.agentConfig" -}}
{{- $file := ternary "files/agent-restricted.yaml" "files/agent.yaml" .Values.agent.restricted -}}
{{- $given := deepCopy .Values.agent.config -}}
{{- include "sickbay.dropNulls" $given -}}
{{- mustMergeOverwrite (.Files.Get $file | fromYaml) $given | toYaml -}}
{{- end }}

{{/* The part of it that an agent reads only when it starts. All else applies without a restart. */}}
{{- define "sickbay.agentConfigAtStart" -}}
{{- $config := include "sickbay.agentConfig" . | fromYaml -}}
{{- if $config.expect }}{{- $_ := set $config "expect" (omit $config.expect "gpus") -}}{{ end -}}
{{- omit $config "checks" "own" "kernel_lines" "kernel_monitor" "log_level" | toYaml -}}
{{- end }}

{{/* A dictionary as TOML: "sickbay.toml" (dict "table" DICTIONARY "path" "") */}}
{{- define "sickbay.toml" -}}
{{- $path := .path -}}
{{- range $key, $value := .table -}}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "sickbay.tomlKey" $key }} = {{ include "sickbay.tomlValue" $value }}
{{- end -}}
{{- end -}}
{{- range $key, $value := .table -}}
{{- if kindIs "map" $value -}}
{{- $inner := include "sickbay.tomlKey" $key -}}
{{- if $path }}{{ $inner = printf "%s.%s" $path $inner }}{{ end }}

[{{ $inner }}]
{{- include "sickbay.toml" (dict "table" $value "path" $inner) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "sickbay.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end }}

{{- define "sickbay.tomlValue" -}}
{{- if kindIs "slice" . -}}
[{{ range $number, $item := . }}{{ if $number }}, {{ end }}{{ include "sickbay.tomlValue" $item }}{{ end }}]
{{- else if kindIs "map" . -}}
{{- fail "agent.config: a list of tables can't be written in the agent's configuration; expected texts, numbers or true and false" -}}
{{- else if kindIs "invalid" . -}}
{{- fail "agent.config: a list has a null; expected texts, numbers or true and false" -}}
{{- else if kindIs "float64" . -}}
{{- if eq . (floor .) }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end }}
