{{/*
Refuses an install that could not work, and names the remedy. `lookup` finds nothing without
a cluster (helm template), so that only the values are checked there.
*/}}
{{- define "sickbay.checks" -}}
{{- if semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "sickbay needs Kubernetes 1.30 or newer, and this cluster is %s: upgrade the cluster first" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq .Values.profile "large") (not .Values.history.database) -}}
{{- fail "profile: large shares its history in PostgreSQL, and history.database is empty: set it, such as --set history.database=postgresql+asyncpg://sickbay@db.example:5432/sickbay, and create the Secret of history.secretName (docs/history.md#postgresql)" -}}
{{- end -}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace -}}
{{- if $namespace -}}
{{- $level := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "privileged" $namespace -}}
{{- if ne $level "privileged" -}}
{{- fail (printf "the namespace %s enforces the Pod Security level %q, which forbids the agents' pods (the host's network and folders): run `kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged`, or install into a namespace of sickbay's own with `--namespace sickbay --create-namespace`" .Release.Namespace $level .Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- /* Its name is the same with every value. */ -}}
{{- $role := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "sickbay-viewer" -}}
{{- if $role -}}
{{- $notes := dig "metadata" "annotations" dict $role -}}
{{- $owner := printf "%s/%s" (dig "meta.helm.sh/release-namespace" "" $notes) (dig "meta.helm.sh/release-name" "" $notes) -}}
{{- if not (has $owner (list "/" (printf "%s/%s" .Release.Namespace .Release.Name))) -}}
{{- fail (printf "this cluster has sickbay already, as the release %s (namespace/name), and a cluster can have only one: upgrade that release, or uninstall it first" $owner) -}}
{{- end -}}
{{- end -}}
{{- $name := printf "%s-aggregator" (include "sickbay.fullname" .) -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if and $set (ne (empty $set.spec.volumeClaimTemplates) (not .Values.aggregator.persistence.enabled)) -}}
{{- fail (printf "aggregator.persistence.enabled can't be changed in place, because Kubernetes refuses it: run `kubectl -n %s delete statefulset %s` first (deleting it releases no node, and agents keep their evidence), then repeat this command" .Release.Namespace $name) -}}
{{- end -}}
{{- end }}
