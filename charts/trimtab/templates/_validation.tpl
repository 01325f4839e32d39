{{/*
Combinations that cannot work, each with what to do about it. values.schema.json has refused single values already.
All mistakes are told at once.
*/}}
{{- define "trimtab.validate" -}}
{{- $mistakes := list -}}
{{- range $check := list "accounts" "binding" "tls" "policy" "agent" "fakeNodes" "network" "ports" "settings" "web" "replicas" "otherKinds" "registry" -}}
{{- range include (printf "trimtab.validate.%s" $check) $ | fromYamlArray -}}
{{- $mistakes = append $mistakes . -}}
{{- end -}}
{{- end -}}
{{- if $mistakes -}}
{{- fail (printf "\n\nThese values do not go together:\n\n  - %s\n" (join "\n  - " $mistakes)) -}}
{{- end -}}
{{- end }}

{{- define "trimtab.validate.accounts" -}}
{{- range list "controller" "extender" "scheduler" "agent" "web" }}
{{- $account := (index $.Values .).serviceAccount }}
{{- if and (not $account.create) (not $account.name) }}
- {{ printf "%s.serviceAccount.create is false: name the account to use in %s.serviceAccount.name" . . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "trimtab.validate.registry" -}}
{{- $nowhere := list }}
{{- if not (or .Values.image.registry (eq .Values.image.pullPolicy "Never")) }}
{{- range list "controller" "agent" "extender" "web" }}
{{- $values := index $.Values . }}
{{- if and (or $values.enabled (eq . "controller")) (not (contains "/" $values.image.repository)) }}
{{- $nowhere = append $nowhere $values.image.repository }}
{{- end }}
{{- end }}
{{- end }}
{{- if $nowhere }}
- {{ printf "image.registry: name the registry that %s come from, such as --set image.registry=registry.example.com/team (hack/kind/images builds them, hack/release pushes them); without one, a stranger's images would be pulled. Where nodes have them already, set image.pullPolicy to Never" (join ", " ($nowhere | uniq)) | quote }}
{{- end }}
{{- end }}

{{- define "trimtab.validate.otherKinds" -}}
{{- if and .Values.otherKinds.advise (not .Values.admission.enabled) }}
- "otherKinds.advise needs admission.enabled: only its policy holds the controller to annotations of those jobs"
{{- end }}
{{- if and .Values.otherKinds.place (not .Values.admission.enabled) }}
- "otherKinds.place needs admission.enabled: only its policies hold the controller to Jobs that are labelled"
{{- end }}
{{- end }}

{{- define "trimtab.validate.binding" -}}
{{- if and (eq .Values.binding.mode "Extender") (not .Values.extender.enabled) }}
- "binding.mode Extender needs the extender: set extender.enabled, or binding.mode to Direct"
{{- end }}
{{- if and .Values.scheduler.enabled (not .Values.extender.enabled) }}
- "scheduler.enabled: that kube-scheduler asks the extender, which is off: set extender.enabled"
{{- end }}
{{- if and .Values.scheduler.enabled (eq .Values.binding.mode "Direct") }}
- "scheduler.enabled: with binding.mode Direct the controller binds all pods of gangs, and a kube-scheduler of the same name would bind them one by one: set binding.mode to Extender, or scheduler.enabled to false"
{{- end }}
{{- if has .Values.binding.schedulerName .Values.scheduler.beside }}
- {{ printf "scheduler.beside: %s is binding.schedulerName already; name profiles for other pods only" .Values.binding.schedulerName | quote }}
{{- end }}
{{- end }}

{{- define "trimtab.validate.tls" -}}
{{- $tls := .Values.extender.tls }}
{{- if .Values.extender.enabled }}
{{- if and (eq $tls.mode "Secret") (not $tls.secretName) }}
- "extender.tls.mode Secret: name the Secret with tls.crt, tls.key and client-ca.crt in extender.tls.secretName, or let the chart (Generated) or cert-manager (CertManager) make it"
{{- end }}
{{- if and (eq $tls.mode "Secret") .Values.scheduler.enabled (not .Values.scheduler.tls.secretName) }}
- "extender.tls.mode Secret: name the Secret with ca.crt, tls.crt and tls.key of kube-scheduler in scheduler.tls.secretName"
{{- end }}
{{- if and (ne $tls.mode "Secret") (or $tls.secretName .Values.scheduler.tls.secretName) }}
- {{ printf "extender.tls.mode %s makes its own Secrets: leave extender.tls.secretName and scheduler.tls.secretName empty, or set extender.tls.mode to Secret" $tls.mode | quote }}
{{- end }}
{{- if and (ne $tls.mode "CertManager") $tls.certManager.issuerRef }}
- "extender.tls.certManager.issuerRef is given: set extender.tls.mode to CertManager"
{{- end }}
{{- range .Values.extender.inspectNames }}
{{- if has . $.Values.extender.clientNames }}
- {{ printf "extender.inspectNames: %s is among extender.clientNames, too; who may ask everything needs no name for reading" . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "trimtab.validate.policy" -}}
{{- $weights := .Values.policy.weights }}
{{- $sources := list }}
{{- if $weights.image.reference }}{{ $sources = append $sources "image.reference" }}{{ end }}
{{- if $weights.configMap.name }}{{ $sources = append $sources "configMap.name" }}{{ end }}
{{- if $weights.persistentVolumeClaim.name }}{{ $sources = append $sources "persistentVolumeClaim.name" }}{{ end }}
{{- if gt (len $sources) 1 }}
- {{ printf "policy.weights: there can be one source, not %d (%s)" (len $sources) (join ", " $sources) | quote }}
{{- end }}
{{- if and $weights.subPath (not $sources) }}
- "policy.weights.subPath: of what? Name an image, a ConfigMap or a PersistentVolumeClaim"
{{- end }}
{{- if and $weights.image.reference $weights.subPath (semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version) }}
- "policy.weights.subPath: image volumes have it from Kubernetes 1.33 on; put the weights into the root of the image"
{{- end }}
{{- if and .Values.policy.shadow (eq .Values.policy.shadow .Values.policy.name) }}
- {{ printf "policy.shadow: %s decides already; a shadow is another policy, or none" .Values.policy.shadow | quote }}
{{- end }}
{{- end }}

{{- define "trimtab.validate.agent" -}}
{{- if .Values.agent.enabled }}
{{- if and (eq .Values.agent.backend "fake") (not .Values.agent.profile) }}
- "agent.backend fake needs agent.profile: what GPUs to play (see manifests/agents)"
{{- end }}
{{- if and (ne .Values.agent.backend "fake") .Values.agent.profile }}
- {{ printf "agent.profile is for agent.backend fake, not %s" .Values.agent.backend | quote }}
{{- end }}
{{- if and (ne .Values.agent.backend "nvml") (eq .Values.agent.runtimeClassName "nvidia") }}
- {{ printf "agent.runtimeClassName nvidia is for agent.backend nvml, not %s" .Values.agent.backend | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "trimtab.validate.fakeNodes" -}}
{{- if and .Values.fakeNodes.enabled (eq (int .Values.controller.replicas) 0) }}
- "fakeNodes.enabled with controller.replicas 0: nobody would decide anything"
{{- end }}
{{- end }}

{{- define "trimtab.validate.network" -}}
{{- $network := .Values.networkPolicy }}
{{- if and (not $network.enabled) (or $network.metricsScraperNamespace $network.extenderFrom $network.reportsFrom $network.webFrom) }}
- "networkPolicy.enabled is false, and its other values would limit nobody: set it, or leave them out"
{{- end }}
{{- if and $network.extenderFrom (not .Values.extender.enabled) }}
- "networkPolicy.extenderFrom: the extender is off; set extender.enabled, or leave it out"
{{- end }}
{{- if and $network.reportsFrom (not .Values.reports.enabled) }}
- "networkPolicy.reportsFrom: nobody listens for reports; set reports.enabled, or leave it out"
{{- end }}
{{- end }}

{{- define "trimtab.validate.ports" -}}
{{- $metrics := .Values.metrics }}
{{- if and (ne $metrics.authentication "None") (not $metrics.tls.secretName) }}
- "metrics.authentication Kubernetes: tokens would be shown in plain text; name the Secret of a certificate in metrics.tls.secretName"
{{- end }}
{{- if and $metrics.tls.agentSecretName (not $metrics.tls.secretName) }}
- "metrics.tls.agentSecretName: name that of the controller in metrics.tls.secretName, too; its ca.crt is what Prometheus trusts"
{{- end }}
{{- if and $metrics.tls.secretName (eq $metrics.tls.secretName $metrics.tls.agentSecretName) }}
- "metrics.tls.agentSecretName: agents are on every node, and one of these could pass for the controller: take another key"
{{- end }}
{{- if and $metrics.tls.verifyClients (not (and $metrics.tls.secretName $metrics.tls.agentSecretName)) }}
- "metrics.tls.verifyClients: clients are known by certificate over TLS only; name both Secrets, in secretName and agentSecretName"
{{- end }}
{{- if and $metrics.tls.verifyClients .Values.serviceMonitor.enabled (not .Values.serviceMonitor.clientSecretName) }}
- "metrics.tls.verifyClients: every scrape would be refused; name what Prometheus shows in serviceMonitor.clientSecretName"
{{- end }}
{{- if and .Values.serviceMonitor.clientSecretName (not $metrics.tls.verifyClients) }}
- "serviceMonitor.clientSecretName: nobody asks for a certificate; set metrics.tls.verifyClients, or leave it out"
{{- end }}
{{- if and .Values.serviceMonitor.tokenSecretName (eq $metrics.authentication "None") }}
- "serviceMonitor.tokenSecretName: nobody asks for a token; set metrics.authentication to Kubernetes, or leave it out"
{{- end }}
{{- if and .Values.reports.tls.ca (not .Values.reports.tls.secretName) }}
- "reports.tls.ca: the authority of what? Name the Secret of the certificate in reports.tls.secretName"
{{- end }}
{{- if and .Values.reports.tls.secretName (not .Values.reports.enabled) }}
- "reports.tls: nobody listens for reports; set reports.enabled, or leave it out"
{{- end }}
{{- end }}

{{- define "trimtab.validate.settings" -}}
{{- $ours := dict "log" (dict "level" "log.level" "format" "log.format") "binding" (dict "mode" "binding.mode" "scheduler_name" "binding.schedulerName" "timeout_seconds" "binding.timeoutSeconds") "gang" (dict "check_references" "checkReferences") "leadership" (dict "namespace" "the release's namespace" "name" "nothing: it is fixed") "policy" (dict "name" "policy.name" "fallback" "policy.fallback" "shadow" "policy.shadow" "deadline_seconds" "policy.deadlineSeconds" "config_map" "nothing: it is fixed") "monitor" (dict "namespace" "the release's namespace" "config_map" "nothing: it is fixed") "reports" (dict "enabled" "reports.enabled" "port" "reports.port" "url" "reports.enabled" "namespace" "the release's namespace" "config_map" "nothing: it is fixed" "tls" "reports.tls" "ca" "reports.tls") "interop" (dict "kueue" "kueue.enabled" "other_kinds" "otherKinds.advise" "place" "otherKinds.place") "fake" (dict "enabled" "fakeNodes.enabled" "speedup" "fakeNodes.speedup") "metrics" (dict "tls" "metrics.tls" "authentication" "metrics.authentication" "host" "nothing: it is fixed" "port" "nothing: it is fixed") "agent" (dict "backend" "agent.backend" "profile" "agent.profile" "dcgm_url" "agent.dcgmUrl" "sample_seconds" "agent.sampleSeconds" "report_seconds" "agent.reportSeconds" "pod_resources" "nothing: it is fixed" "node" "nothing: it is the pod's") "extender" (dict "host" "nothing: it is fixed" "port" "nothing: it is fixed" "certificate" "extender.tls" "key" "extender.tls" "client_ca" "extender.tls" "client_names" "extender.clientNames" "inspect_names" "extender.inspectNames" "bind" "nothing: its pods have no right to bind") "web" (dict "tls" "web.tls.secretName" "insecure" "web.insecure" "host" "nothing: it is fixed" "port" "nothing: it is fixed") "kube" (dict "kubeconfig" "nothing: pods use their ServiceAccount" "context" "nothing: pods use their ServiceAccount") }}
{{- range $section, $fields := .Values.settings }}
{{- range $field, $_ := $fields }}
{{- with index (index $ours $section | default dict) $field }}
- {{ printf "settings.%s.%s: use %s instead" $section $field . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "trimtab.validate.web" -}}
{{- $web := .Values.web }}
{{- if and $web.enabled (not $web.tls.secretName) (not $web.insecure) }}
- "web.enabled: visitors send tokens, which plain HTTP shows to others: name a Secret with tls.crt and tls.key in web.tls.secretName, or set web.insecure where what is in front of it speaks TLS and nobody else reaches it"
{{- end }}
{{- if and $web.ingress.enabled (not $web.enabled) }}
- "web.ingress.enabled: the console is off; set web.enabled, or leave it out"
{{- end }}
{{- if and $web.ingress.enabled (not $web.ingress.host) }}
- "web.ingress.enabled: name the host in web.ingress.host"
{{- end }}
{{- if and .Values.networkPolicy.webFrom (not $web.enabled) }}
- "networkPolicy.webFrom: the console is off; set web.enabled, or leave it out"
{{- end }}
{{- end }}

{{- define "trimtab.validate.replicas" -}}
{{- range list "controller" "extender" "scheduler" }}
{{- $values := index $.Values . }}
{{- if and (or $values.enabled (eq . "controller")) $values.podDisruptionBudget.enabled (ge (int $values.podDisruptionBudget.minAvailable) (int $values.replicas)) (gt (int $values.replicas) 0) }}
- {{ printf "%s.podDisruptionBudget.minAvailable is %d of %d replicas: nodes with them could never be drained; raise %s.replicas, or set %s.podDisruptionBudget.enabled to false" . (int $values.podDisruptionBudget.minAvailable) (int $values.replicas) . . | quote }}
{{- end }}
{{- end }}
{{- end }}
