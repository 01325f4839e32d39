{{/*
Certificates of tls.mode Generated, made once per render and kept from upgrade to upgrade. The authority's key is thrown
away: nobody can sign anything with it later. All Secrets are made anew together, when one is missing or when two thirds
of their time are over; that kube-schedulers restart then is for the checksum in their pods' annotations to see to.
*/}}
{{- define "trimtab.tls" -}}
{{- if not (hasKey .Values "generatedTls") -}}
{{- $secrets := dict -}}
{{- $kept := true -}}
{{- range include "trimtab.tlsSecrets" . | fromYamlArray -}}
{{- $found := lookup "v1" "Secret" $.Release.Namespace . -}}
{{- if not $found -}}
{{- $kept = false -}}
{{- else -}}
{{- $until := dig "metadata" "annotations" "trimtab.dev/not-after" "1970-01-01" $found -}}
{{- $left := sub (toDate "2006-01-02" $until | unixEpoch) (now | unixEpoch) -}}
{{- if lt (mul 3 $left) (mul $.Values.extender.tls.days 86400) -}}{{- $kept = false -}}{{- end -}}
{{- $_ := set $secrets . (dict "until" $until "data" $found.data) -}}
{{- end -}}
{{- end -}}
{{- if not $kept -}}{{- $secrets = include "trimtab.newTls" . | fromYaml -}}{{- end -}}
{{- $_ := set .Values "generatedTls" $secrets -}}
{{- end -}}
{{- toYaml .Values.generatedTls -}}
{{- end }}

{{/* Names of the Secrets that the chart makes. */}}
{{- define "trimtab.tlsSecrets" -}}
- trimtab-extender-tls
{{- if .Values.scheduler.enabled }}
- trimtab-scheduler-tls
{{- end }}
{{- if .Values.extender.inspectNames }}
- trimtab-inspect-tls
{{- end }}
{{- end }}

{{/* New ones: Secret -> data, and the day until which they are good. */}}
{{- define "trimtab.newTls" -}}
{{- $days := int .Values.extender.tls.days -}}
{{- $until := now | date_modify (printf "%dh" (mul 24 $days)) | date "2006-01-02" -}}
{{- $service := printf "trimtab-extender.%s.svc" .Release.Namespace -}}
{{- $authority := genCAWithKey "trimtab" $days (genPrivateKey "ecdsa") -}}
{{- $server := genSignedCertWithKey "trimtab-extender" nil (list $service) $days $authority (genPrivateKey "ecdsa") -}}
{{- $secrets := dict -}}
{{- $ca := b64enc $authority.Cert -}}
{{- $_ := set $secrets "trimtab-extender-tls" (dict "tls.crt" (b64enc $server.Cert) "tls.key" (b64enc $server.Key) "ca.crt" $ca "client-ca.crt" $ca) -}}
{{- $clients := dict -}}
{{- if .Values.scheduler.enabled }}{{ $_ := set $clients "trimtab-scheduler-tls" (first .Values.extender.clientNames) }}{{ end -}}
{{- with .Values.extender.inspectNames }}{{ $_ := set $clients "trimtab-inspect-tls" (first .) }}{{ end -}}
{{- range $secret, $name := $clients -}}
{{- $client := genSignedCertWithKey $name nil nil $days $authority (genPrivateKey "ecdsa") -}}
{{- $_ := set $secrets $secret (dict "tls.crt" (b64enc $client.Cert) "tls.key" (b64enc $client.Key) "ca.crt" $ca) -}}
{{- end -}}
{{- range $secret, $data := $secrets }}
{{ $secret }}:
  until: {{ $until | quote }}
  data:
    {{- toYaml $data | nindent 4 }}
{{- end }}
{{- end }}

{{/* Certificates that the chart makes restart who uses them: the kubelet brings them minutes later, each to its own time. */}}
{{- define "trimtab.tlsChecksum" -}}
{{- if eq .Values.extender.tls.mode "Generated" -}}
checksum/tls: {{ include "trimtab.tls" . | sha256sum }}
{{- end }}
{{- end }}

{{/* Secret of the extender's certificate, and the file in it by which clients are judged. */}}
{{- define "trimtab.extenderSecret" -}}
{{- if eq .Values.extender.tls.mode "Secret" }}{{ .Values.extender.tls.secretName }}{{ else }}trimtab-extender-tls{{ end -}}
{{- end }}
{{- define "trimtab.clientCa" -}}
{{- if eq .Values.extender.tls.mode "CertManager" }}ca.crt{{ else }}client-ca.crt{{ end -}}
{{- end }}

{{/* Environment of the extender. */}}
{{- define "trimtab.extenderEnv" -}}
{{ include "trimtab.commonEnv" . }}
{{- with include "trimtab.metricsEnv" (list . "extender") | trim }}{{ . | nindent 0 }}{{ end }}
- name: TRIMTAB_EXTENDER__CERTIFICATE
  value: /etc/trimtab/tls/tls.crt
- name: TRIMTAB_EXTENDER__KEY
  value: /etc/trimtab/tls/tls.key
- name: TRIMTAB_EXTENDER__CLIENT_CA
  value: /etc/trimtab/tls/{{ include "trimtab.clientCa" . }}
- name: TRIMTAB_EXTENDER__CLIENT_NAMES
  value: {{ .Values.extender.clientNames | toJson | squote }}
- name: TRIMTAB_EXTENDER__INSPECT_NAMES
  value: {{ .Values.extender.inspectNames | toJson | squote }}
{{- end }}
